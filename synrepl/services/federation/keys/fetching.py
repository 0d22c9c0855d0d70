"""Fetches the keys of servers: from themselves, or from servers that are trusted to know them (notaries)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from synrepl.core import jsons
from synrepl.core.clock import Scheduler
from synrepl.core.concurrent import map_concurrently
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.federation.published_keys import BadKeyDocument, KeyDocument, parse_key_document
from synrepl.rooms import NoCanonicalJson, ServerKey, check_json_signature

#: Servers whose keys are wanted, with the IDs of the keys and the times in milliseconds at which they must be valid.
WantedKeys = Mapping[str, Mapping[str, int]]

#: Maximum number of servers that are asked at the same time.
CONCURRENT = 20

#: Maximum number of servers whose keys a notary is asked for at once, and of keys of each.
SERVERS_AT_ONCE = 100
KEYS_AT_ONCE = 20


class AsksForKeys(Protocol):
    """Asks servers for keys; see :class:`.FederationClient`."""

    async def server_keys(self, destination: str, *, ignores_back_off: bool = False) -> bytes: ...

    async def query_keys(
        self, notary: str, wanted: Mapping[str, Mapping[str, int]]
    ) -> Sequence[bytes]: ...


@dataclass(frozen=True, slots=True)
class Notary:
    """A server that is trusted to know the keys of others.

    :ivar keys: its own keys; none to fetch them from itself
    """

    server_name: str
    keys: Mapping[str, ServerKey] = field(default_factory=dict)


class KeyFetcher:
    """Fetches documents, and verifies that they are signed by their servers, and by the notary they are from.

    :param keys_of_notary: gives the current keys of a notary whose keys are not configured
    """

    def __init__(
        self,
        scheduler: Scheduler,
        client: AsksForKeys,
        notaries: Sequence[Notary],
        keys_of_notary: Callable[[str], Awaitable[Mapping[str, ServerKey]]],
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._client = client
        self._notaries = notaries
        self._keys_of_notary = keys_of_notary
        self._log = log
        #: Numbers of documents that were fetched, and of attempts that failed.
        self.fetched = 0
        self.failed = 0

    async def fetch_direct(
        self, server: str, *, ignores_back_off: bool = False
    ) -> KeyDocument | None:
        """The document of a server, from itself; None if it cannot be had."""
        try:
            data = await self._client.server_keys(server, ignores_back_off=ignores_back_off)
            document = parse_key_document(data, server)
        except SynreplError as error:
            self.failed += 1
            self._log.info("no keys from {server}: {error}", server=server, error=error)
            return None
        self.fetched += 1
        return document

    async def fetch_all_direct(self, servers: Collection[str]) -> list[KeyDocument]:
        """The documents of servers, from themselves, several at a time; those that can be had."""
        found = await map_concurrently(self._scheduler, self.fetch_direct, servers, CONCURRENT)
        return [document for document in found if document is not None]

    async def fetch_from_notaries(self, wanted: WantedKeys) -> list[KeyDocument]:
        """The documents of servers, from the notaries, one after another until all are there."""
        found: dict[str, KeyDocument] = {}
        for notary in self._notaries:
            left = [server for server in wanted if server not in found]
            for at in range(0, len(left), SERVERS_AT_ONCE):
                some = {server: wanted[server] for server in left[at : at + SERVERS_AT_ONCE]}
                for document in await self._from_notary(notary, some):
                    found[document.server_name] = document
        return list(found.values())

    async def _from_notary(self, notary: Notary, wanted: WantedKeys) -> list[KeyDocument]:
        asked = {server: dict(list(keys.items())[:KEYS_AT_ONCE]) for server, keys in wanted.items()}
        try:
            keys = notary.keys or await self._keys_of_notary(notary.server_name)
            answers = await self._client.query_keys(notary.server_name, asked)
        except SynreplError as error:
            self.failed += 1
            self._log.info(
                "no keys from notary {notary}: {error}", notary=notary.server_name, error=error
            )
            return []
        found: dict[str, KeyDocument] = {}
        for answer in answers[: 2 * SERVERS_AT_ONCE]:
            document = self._verified(notary.server_name, keys, answer)
            if document is None or document.server_name not in wanted:
                continue
            before = found.get(document.server_name)
            if before is None or before.stated_until_ms < document.stated_until_ms:
                found[document.server_name] = document
        self.fetched += len(found)
        return list(found.values())

    def _verified(
        self, notary: str, keys: Mapping[str, ServerKey], answer: bytes
    ) -> KeyDocument | None:
        """A document that its server and the notary have signed; else None."""
        try:
            document = parse_key_document(answer)
            refusal = check_json_signature(jsons.decode(answer, "it"), notary, keys)
        except (BadKeyDocument, NoCanonicalJson) as error:
            self._log.info("keys from notary {notary}: {error}", notary=notary, error=error)
            return None
        if refusal is not None:
            reason = refusal.sentence
            self._log.warn("keys from notary {notary}: {reason}", notary=notary, reason=reason)
            return None
        return document

"""The keys of other servers: in memory, in the database, and fetched when they are missing.

A server is asked once at a time and not again for some time, whoever wants its keys; so a request or an event with a
key that does not exist costs its server nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from synrepl.caches.load import Load
from synrepl.core.clock import Scheduler
from synrepl.core.log import Logger
from synrepl.core.retry import BackOff
from synrepl.federation.published_keys import KeyDocument, is_key_id
from synrepl.federation.server_names import UnusableServerName, parse_server_name
from synrepl.rooms import Keys, ServerKey
from synrepl.services.federation.keys.fetching import (
    AsksForKeys,
    KeyFetcher,
    Notary,
    WantedKeys,
)
from synrepl.services.federation.keys.own_keys import OwnKeys
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.server_keys import (
    KnownKey,
    KnownKeys,
    StoredDocument,
    read_key_documents,
    read_keys,
    write_keys,
)

#: Maximum number of servers whose keys are in memory, and of servers whose failures are.
MAX_SERVERS = 20_000

#: Seconds for which a server that was asked for keys is not asked again; the more, the more often nothing came of it.
ASK_AGAIN = BackOff(first_s=30.0, longest_s=600.0)


class NotaryQuery(NamedTuple):
    """What a server wants to know of another one.

    :ivar key_ids: keys that it needs; none for all
    :ivar valid_until_ms: time at which its document must still be valid
    """

    key_ids: frozenset[str]
    valid_until_ms: int


class ServerKeyRing:
    """Knows the keys of servers.

    :param own: of this server
    :param client: asks servers
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        own: OwnKeys,
        client: AsksForKeys,
        notaries: Sequence[Notary],
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._own = own
        self._fetcher = KeyFetcher(scheduler, client, notaries, self._keys_of_notary, log)
        self._known: OrderedDict[str, Mapping[str, KnownKey]] = OrderedDict()
        self._asked: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._loads: dict[str, Load] = {}

    @property
    def fetched(self) -> int:
        """Number of documents that were fetched."""
        return self._fetcher.fetched

    @property
    def failed(self) -> int:
        """Number of attempts to fetch keys that failed."""
        return self._fetcher.failed

    # -- what others need ---------------------------------------------------------------------

    async def known(self, servers: Collection[str]) -> Keys:
        """The keys of servers that are known without asking them, for events."""
        keys = {
            server: {key_id: known.key for key_id, known in known_keys.items()}
            for server, known_keys in (await self._read(servers)).items()
        }
        if self._own.server_name in servers:
            keys[self._own.server_name] = await self._own.server_keys()
        return keys

    async def for_events(self, wanted: WantedKeys) -> Keys:
        """The keys of servers, for events; those that are missing or not valid long enough are fetched.

        Notaries come first, because they know many servers at once and also those that are away.
        """
        missing = _missing(await self._read(wanted), wanted, for_requests=False)
        missing = {
            server: keys
            for server, keys in missing.items()
            if server != self._own.server_name and _can_be_asked(server)
        }
        if missing:
            await self._fetch(missing, directly_first=False)
        return await self.known(wanted)

    def remembered(self, server: str, key_id: str) -> ServerKey | None:
        """A key of a server with which it may sign requests now, if it is in memory."""
        now_ms = int(self._scheduler.seconds() * 1000)
        known = self._known.get(server, {}).get(key_id)
        return known.key if known is not None and _serves(known, now_ms, True) else None

    async def for_request(self, server: str, key_id: str) -> ServerKey | None:
        """A key of a server with which it may sign requests now; None if it has no such key.

        The server itself is asked first, even if it has failed lately: it is up, since it asks.
        """
        wanted = {server: {key_id: int(self._scheduler.seconds() * 1000)}}
        if _missing(await self._read([server]), wanted, for_requests=True):
            await self._fetch(wanted, directly_first=True)
        found = (await self._read([server]))[server].get(key_id)
        return None if found is None or found.is_old else found.key

    async def documents(self, wanted: Mapping[str, NotaryQuery]) -> Mapping[str, bytes]:
        """The documents of servers, as they signed them, for a server that asks this one as a notary.

        What is not valid long enough is better than nothing, if the server cannot be asked.
        """
        askable = {server: query for server, query in wanted.items() if _can_be_asked(server)}
        known, stored = await self._read(askable), await self._documents(askable)
        missing: dict[str, Mapping[str, int]] = {}
        for server, query in askable.items():
            is_valid = server in stored and stored[server].stated_until_ms >= query.valid_until_ms
            if not is_valid or not query.key_ids <= known[server].keys():
                missing[server] = dict.fromkeys(query.key_ids, 0)
        if missing:
            await self._fetch(missing, directly_first=True)
            stored = await self._documents(askable)
        return {server: found.document for server, found in stored.items()}

    async def _documents(self, servers: Collection[str]) -> Mapping[str, StoredDocument]:
        return await self._database.run(
            "documents with keys", lambda txn: read_key_documents(txn, servers), read_only=True
        )

    # -- memory and database ------------------------------------------------------------------

    async def _read(self, servers: Iterable[str]) -> dict[str, Mapping[str, KnownKey]]:
        """The known keys of servers; of one without, there are none."""
        found = {server: self._known.get(server) for server in servers}
        missing = [server for server, keys in found.items() if keys is None and "\0" not in server]
        read: KnownKeys = {}
        if missing:
            read = await self._database.run(
                "keys of servers", lambda txn: read_keys(txn, missing), read_only=True
            )
            for server, keys in read.items():
                if keys:
                    self._remember(server, keys)
        return {
            server: keys if keys is not None else read.get(server, {})
            for server, keys in found.items()
        }

    def _remember(self, server: str, keys: Mapping[str, KnownKey]) -> None:
        self._known[server] = keys
        self._known.move_to_end(server)
        while len(self._known) > MAX_SERVERS:
            self._known.popitem(last=False)

    # -- fetching -----------------------------------------------------------------------------

    async def _fetch(self, wanted: WantedKeys, *, directly_first: bool) -> None:
        """Fetch keys, unless somebody does already or the server was asked lately; never raises."""
        waiting = [
            self._loads[server].join(self._scheduler.promise())
            for server in wanted
            if server in self._loads
        ]
        now = self._scheduler.seconds()
        mine = {
            server: keys
            for server, keys in wanted.items()
            if server not in self._loads and self._asked.get(server, (0.0, 0))[0] <= now
        }
        if mine:
            load = Load(0)
            self._loads.update(dict.fromkeys(mine, load))
            waiting.append(load.join(self._scheduler.promise()))
            # On its own, because whoever wants the keys first may be cancelled.
            self._scheduler.spawn("fetch keys", self._run(load, mine, directly_first))
        for promise in waiting:
            await promise

    async def _run(self, load: Load, wanted: WantedKeys, directly_first: bool) -> None:
        try:
            left, answered = dict(wanted), set[str]()
            for is_direct in (directly_first, not directly_first):
                if left:
                    documents = await self._ask(left, is_direct, directly_first)
                    await self._keep(documents, is_direct)
                    answered.update(document.server_name for document in documents)
                    left = dict(_missing(await self._read(left), left, for_requests=directly_first))
            self._note(wanted, answered)
        finally:
            for server in wanted:
                del self._loads[server]
            load.succeed(None)

    async def _ask(
        self, wanted: WantedKeys, is_direct: bool, ignores_back_off: bool
    ) -> list[KeyDocument]:
        if not is_direct:
            return await self._fetcher.fetch_from_notaries(wanted)
        if len(wanted) > 1:
            return await self._fetcher.fetch_all_direct(wanted)
        (server,) = wanted
        document = await self._fetcher.fetch_direct(server, ignores_back_off=ignores_back_off)
        return [] if document is None else [document]

    async def _keep(self, documents: Sequence[KeyDocument], is_direct: bool) -> None:
        """Store documents, and forget what was known of their servers."""
        if not documents:
            return
        now_ms = int(self._scheduler.seconds() * 1000)

        def work(txn: Transaction) -> KnownKeys:
            write_keys(txn, documents, now_ms, is_direct=is_direct)
            return read_keys(txn, [document.server_name for document in documents])

        for server, keys in (await self._database.run("store keys", work)).items():
            self._remember(server, keys)

    def _note(self, wanted: WantedKeys, answered: Collection[str]) -> None:
        """Remember when servers may be asked again."""
        now = self._scheduler.seconds()
        for server in wanted:
            before = self._asked.pop(server, (0.0, 0))[1]
            failures = 0 if server in answered else before + 1
            delay_s = ASK_AGAIN.delay_s(failures, self._scheduler.random)
            self._asked[server] = (now + delay_s, failures)
        while len(self._asked) > MAX_SERVERS:
            self._asked.popitem(last=False)

    async def _keys_of_notary(self, server: str) -> Mapping[str, ServerKey]:
        """The current keys of a notary, from itself."""
        now_ms = int(self._scheduler.seconds() * 1000)
        found = (await self._read([server]))[server]
        if not any(not each.is_old and each.key.was_valid(now_ms) for each in found.values()):
            document = await self._fetcher.fetch_direct(server)
            if document is not None:
                await self._keep([document], is_direct=True)
            found = (await self._read([server]))[server]
        return {key_id: each.key for key_id, each in found.items() if not each.is_old}


def _missing(known: KnownKeys, wanted: WantedKeys, *, for_requests: bool) -> WantedKeys:
    """Those of the wanted keys that are not known, or not valid long enough."""
    missing = {}
    for server, keys in wanted.items():
        left = {
            key_id: at
            for key_id, at in keys.items()
            if is_key_id(key_id) and not _serves(known[server].get(key_id), at, for_requests)
        }
        # Without key IDs, all keys of a server are wanted.
        if left or (not keys and not known[server]):
            missing[server] = left
    return missing


def _serves(known: KnownKey | None, at: int, for_requests: bool) -> bool:
    if known is None or (for_requests and known.is_old):
        return False
    # What is known of an old key does not change any more.
    return known.is_old or known.key.was_valid(at)


def _can_be_asked(server: str) -> bool:
    try:
        parse_server_name(server)
    except UnusableServerName:
        return False
    return True

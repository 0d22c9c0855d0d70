"""Endpoints with the keys of this server, and of others for which it is a notary.

Sources: https://spec.matrix.org/v1.16/server-server-api/#publishing-keys and
https://spec.matrix.org/v1.16/server-server-api/#querying-keys-through-another-server
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synrepl.adapters.federation.signed_endpoints import FederationEndpoints
from synrepl.adapters.http.messages import HttpAnswer, HttpRequest
from synrepl.adapters.http.routes import Route
from synrepl.core import jsons
from synrepl.core.clock import Clock
from synrepl.core.errors import InputError
from synrepl.federation.published_keys import BadKeyDocument, countersigned, parse_key_document
from synrepl.rooms import NoCanonicalJson
from synrepl.services.federation.keys.key_ring import NotaryQuery, ServerKeyRing
from synrepl.services.federation.keys.own_keys import OwnKeys

#: Maximum number of servers that a request asks for, and of keys of each.
MAX_SERVERS = 100
MAX_KEYS = 50

_KEYS = "/_matrix/key/v2"


class BadKeyQuery(InputError):
    """this is no query for keys: {reason}"""


class KeyEndpoints:
    """Answers who asks for keys."""

    def __init__(self, clock: Clock, own_keys: OwnKeys, keys: ServerKeyRing) -> None:
        self._clock = clock
        self._own_keys = own_keys
        self._keys = keys

    def routes(self, endpoints: FederationEndpoints) -> list[Route]:
        """The routes; those with a key ID are of older versions of the specification."""
        return [
            *(
                endpoints.public("GET", f"{_KEYS}/server{key_id}", self.own)
                for key_id in ("", "/", "/<key_id>")
            ),
            *(
                endpoints.public("GET", f"{_KEYS}/query/<server>{key_id}", self.one, waits=True)
                for key_id in ("", "/<key_id>")
            ),
            endpoints.public("POST", f"{_KEYS}/query", self.several, waits=True),
        ]

    async def own(self, request: HttpRequest) -> HttpAnswer:
        """The keys of this server."""
        return HttpAnswer(200, await self._own_keys.document())

    async def one(self, request: HttpRequest) -> HttpAnswer:
        """The keys of another server."""
        key_id = request.path.get("key_id")
        minimum = _minimum(request.query.get("minimum_valid_until_ts"), self._now_ms())
        query = NotaryQuery(frozenset() if key_id is None else frozenset([key_id]), minimum)
        return await self._answer({request.path["server"]: query})

    async def several(self, request: HttpRequest) -> HttpAnswer:
        """The keys of other servers."""
        wanted = _member(jsons.decode(request.body, "the body"), "server_keys")
        if len(wanted) > MAX_SERVERS:
            raise BadKeyQuery(reason=f"it is for more than {MAX_SERVERS} servers")
        return await self._answer({name: self._query(wanted, name) for name in wanted})

    def _query(self, wanted: Mapping[str, Any], server: str) -> NotaryQuery:
        keys = _member(wanted, server)
        if len(keys) > MAX_KEYS:
            raise BadKeyQuery(reason=f"it is for more than {MAX_KEYS} keys of a server")
        now_ms = self._now_ms()
        minimums = [
            _minimum(_member(keys, key_id).get("minimum_valid_until_ts"), now_ms) for key_id in keys
        ]
        return NotaryQuery(frozenset(keys), max(minimums, default=now_ms))

    async def _answer(self, wanted: Mapping[str, NotaryQuery]) -> HttpAnswer:
        own = self._own_keys
        found = []
        if own.server_name in wanted:
            found.append(await own.document())
        others = {name: query for name, query in wanted.items() if name != own.server_name}
        for document in (await self._keys.documents(others)).values():
            try:
                parsed = parse_key_document(document)
                found.append(countersigned(parsed, own.server_name, own.signing_key))
            except (BadKeyDocument, NoCanonicalJson):
                continue
        return HttpAnswer(200, b'{"server_keys":[%b]}' % b",".join(found))

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _member(holder: Any, name: str) -> Mapping[str, Any]:
    """A member that is an object.

    :raises BadKeyQuery:
    """
    value = holder.get(name) if isinstance(holder, Mapping) else None
    if not isinstance(value, Mapping):
        raise BadKeyQuery(reason=f"{name[:100]!r} is no object")
    return value


def _minimum(value: object, default: int) -> int:
    """A time in milliseconds, of a URL or of JSON.

    :raises BadKeyQuery:
    """
    if value is None:
        return default
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 18:
        return int(value)
    if type(value) is int and 0 <= value < 2**63:
        return value
    raise BadKeyQuery(reason="minimum_valid_until_ts is no time in milliseconds")

"""The connections of sliding sync: stored, so that any process answers the next request, and kept by those that did.

A connection in use is read once by each process. It is written when what the client was told changes in kind, as
:mod:`~synrepl.services.rooms.sliding.connection_state` has it, and not with each answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from synrepl.core.clock import Clock
from synrepl.core.log import Logger
from synrepl.services.rooms.sliding.connection_state import ConnectionState, CorruptConnection
from synrepl.services.rooms.sliding.sliding_pos import UnknownPosition
from synrepl.storage.clients.sliding_positions import (
    TOUCH_AFTER_S,
    ConnectionName,
    PositionKey,
    follow_position,
    open_connection,
    read_position,
)
from synrepl.storage.database import Database

#: Maximum memory for connections that are kept, in bytes.
MAX_KEPT_BYTES = 64 * 2**20

#: Maximum number of membership events of a connection that are not told again.
MAX_MEMBERS = 2_000

_ENTRY_BYTES, _MEMBER_BYTES = 1_000, 100

_NO_MEMBERS: frozenset[int] = frozenset()


class ToldMembers:
    """Membership events that a client was told because of lazy loading, by the token of the answer.

    An answer may be lost. So those of the newest one count once its token is used; then those of older ones do not.
    """

    __slots__ = ("_by_token",)

    def __init__(self) -> None:
        self._by_token: dict[str, frozenset[int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_token.values()))

    def at(self, token: str) -> frozenset[int]:
        """Those that a client with this token was told; none if that is not known."""
        return self._by_token.get(token, _NO_MEMBERS)

    def told(self, before: str, after: str, more: frozenset[int]) -> None:
        """Note the members of an answer from one token to another."""
        known = self.at(before)
        both = known | more
        if len(both) > MAX_MEMBERS:
            both = more if len(more) <= MAX_MEMBERS else _NO_MEMBERS
        self._by_token = {before: known, after: both}


@dataclass(slots=True)
class KnownPosition:
    """A position of a connection, as this process knows it.

    :ivar packed: what the client was told
    :ivar read_at: when it was read or written
    """

    key: PositionKey
    name: ConnectionName
    packed: bytes
    read_at: float
    members: ToldMembers = field(default_factory=ToldMembers)


class SlidingConnections:
    """Reads and writes positions of connections.

    :param max_bytes: maximum memory for those that are kept
    """

    def __init__(
        self, database: Database, clock: Clock, log: Logger, max_bytes: int = MAX_KEPT_BYTES
    ) -> None:
        self._database = database
        self._clock = clock
        self._log = log
        self._max_bytes = max_bytes
        self._kept: OrderedDict[PositionKey, KnownPosition] = OrderedDict()
        self._sizes: dict[PositionKey, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        """Number of positions that are kept."""
        return len(self._kept)

    async def find(self, name: ConnectionName, key: PositionKey) -> KnownPosition:
        """A position that a client names.

        :raises UnknownPosition: it is not there, or is one of another connection
        """
        found = self._kept.get(key)
        if found is None or self._clock.seconds() - found.read_at > TOUCH_AFTER_S:
            stored = await self._database.run(
                "sliding position", lambda txn: read_position(txn, key)
            )
            if stored is None:
                raise UnknownPosition(reason="it was replaced, or its connection has ended")
            found = KnownPosition(key, stored.name, stored.state, self._clock.seconds())
            self._known(found)
        if found.name != name:
            raise UnknownPosition(reason="it is one of another connection")
        if key in self._kept:
            self._kept.move_to_end(key)
        return found

    def state_of(self, position: KnownPosition) -> ConnectionState:
        """What a client was told at a position.

        :raises UnknownPosition: it is damaged
        """
        try:
            return ConnectionState.unpacked(position.packed, position.key.connection_no)
        except CorruptConnection as error:
            self._log.warn("{error}", error=error)
            raise UnknownPosition(reason="what the client was told cannot be read") from None

    async def open(self, name: ConnectionName, state: ConnectionState) -> KnownPosition:
        """Begin a connection."""
        packed = state.packed()
        key = await self._database.run(
            "open sliding connection", lambda txn: open_connection(txn, name, packed)
        )
        return self._known(KnownPosition(key, name, packed, self._clock.seconds()))

    async def follow(self, before: KnownPosition, state: ConnectionState) -> KnownPosition:
        """The position after an answer.

        :raises UnknownPosition: the one before is not there any more
        """
        packed = state.packed()
        key = await self._database.run(
            "follow sliding position", lambda txn: follow_position(txn, before.key, packed)
        )
        if key is None:
            self._forget(before.key)
            raise UnknownPosition(reason="it was replaced, or its connection has ended")
        now = self._clock.seconds()
        return self._known(KnownPosition(key, before.name, packed, now, before.members))

    def note_members(
        self, position: KnownPosition, before: str, after: str, more: Collection[int]
    ) -> None:
        """Note the membership events of an answer at a position, from one token to another."""
        position.members.told(before, after, frozenset(more))
        if position.key in self._kept:
            self._known(position)

    def _known(self, position: KnownPosition) -> KnownPosition:
        """Keep a position, and drop those not used for longest if there is no room."""
        self._forget(position.key)
        self._kept[position.key] = position
        size = _ENTRY_BYTES + len(position.packed) + _MEMBER_BYTES * len(position.members)
        self._sizes[position.key] = size
        self._bytes += size
        while self._bytes > self._max_bytes:
            self._forget(next(iter(self._kept)))
        return position

    def _forget(self, key: PositionKey) -> None:
        if self._kept.pop(key, None) is not None:
            self._bytes -= self._sizes.pop(key)

"""The simulated database for followers: recorded positions, and transactions of handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from synrepl.core.tokens import Token
from synrepl.storage import incarnations
from synrepl.storage.database import CommitUnknown, Isolation, Record, Transaction, Values
from synrepl.storage.followers import dead_letters, handler_positions, named_followers
from synrepl.storage.followers.handler_positions import HandlerPosition, Place
from synrepl.storage.memory.server import MemoryServer

T = TypeVar("T")
Key = tuple[str, str]


class UnknownFollowerStatement(Exception):
    """A statement that the fake does not implement."""


class FollowerRecords:
    """The recorded positions of one follower.

    :ivar own: its own positions, and whether they are from after handlers had positions
    :ivar handlers: the positions of its handlers
    """

    def __init__(
        self,
        own: Mapping[Key, tuple[Token, bool]] | None = None,
        handlers: Mapping[Place, HandlerPosition] | None = None,
    ) -> None:
        self.own = dict(own or {})
        self.handlers = dict(handlers or {})

    def positions(self) -> dict[Key, Token]:
        """The follower's own positions."""
        return {key: position for key, (position, _) in self.own.items()}

    def copy(self) -> FollowerRecords:
        """A copy that can be changed."""
        return FollowerRecords(self.own, self.handlers)


class FollowerTransaction:
    """Implements the statements of ``storage.followers``.

    :ivar effects: callbacks that run when the transaction commits
    """

    def __init__(self, store: FollowerRecordStore) -> None:
        self._store = store
        self._server = store.server
        self.records = dict(store.records)
        self._changed: set[str] = set()
        self.effects: list[Callable[[], object]] = []
        self.rowcount = -1
        self._found: list[Record] = []

    def execute(self, sql: str, params: Values = ()) -> Self:
        """Run one of the known statements."""
        values: Any = tuple(params)
        known: dict[str, Callable[..., None]] = {
            named_followers.POSITIONS: self._positions,
            named_followers.INHERITED: self._inherited,
            named_followers.LOWER: self._lower,
            named_followers.FORGET: self._forget,
            handler_positions.POSITIONS: self._handler_positions,
            handler_positions.POSITION: self._handler_position,
            handler_positions.ADVANCE: self._advance,
            handler_positions.PUT: self._put,
            incarnations.CONFIRMED: self._confirmed,
            incarnations.LOST_SINCE: self._lost_since,
            incarnations.FLOOR: self._floor,
            incarnations.FLOORS: self._floors,
            dead_letters.COUNTS: self._no_dead_letters,
            dead_letters.LOOK_OLDEST: self._no_dead_letters,
            dead_letters.LOOK_NEWEST: self._no_dead_letters,
        }
        if sql not in known:
            raise UnknownFollowerStatement(sql)
        known[sql](*values)
        return self

    def insert_many(
        self, sql: str, rows: Iterable[Values], template: str | None = None
    ) -> list[Record]:
        """Run one of the known statements with many rows."""
        values: list[Any] = [tuple(row) for row in rows]
        if sql == named_followers.RECORD:
            for row in values:
                self._record(*row)
        elif sql == handler_positions.RECORD:
            for row in values:
                self._record_handler(*row)
        elif sql == incarnations.NOTIFIED_HANDLERS:
            self.effects.append(lambda: self._store.loss_notices.extend(values))
        else:
            raise UnknownFollowerStatement(sql)
        return []

    def fetchall(self) -> list[Record]:
        """The rows of the last statement."""
        return self._found

    def fetchone(self) -> Record:
        """The first row, which must exist."""
        return self._found[0]

    def fetchone_or_none(self) -> Record | None:
        """The first row, if any."""
        return self._found[0] if self._found else None

    def __iter__(self) -> Iterator[Record]:
        return iter(self._found)

    def _of(self, follower: str) -> FollowerRecords:
        """A private copy of a follower's records; others see changes when this commits."""
        if follower not in self._changed:
            self._changed.add(follower)
            self.records[follower] = self.records.get(follower, FollowerRecords()).copy()
        return self.records[follower]

    # -- incarnations -----------------------------------------------------------------

    def _confirmed(self) -> None:
        self._server.require_confirmed()
        self._found = [(self._server.incarnation,)]

    def _floor(self, stream: str) -> None:
        self._found = [(self._store.floors().get(stream, 0),)]

    def _floors(self) -> None:
        self._found = list(self._store.floors().items())

    def _lost_since(self, number: int) -> None:
        self._found = self._store.lost_since(number)

    # -- followers --------------------------------------------------------------------

    def _no_dead_letters(self, follower: str, *selection: object) -> None:
        """The simulation has no dead letters."""
        self._found = []

    def _positions(self, follower: str) -> None:
        found = self.records.get(follower, FollowerRecords()).positions()
        self._found = [(*key, position) for key, position in sorted(found.items())]

    def _inherited(self, follower: str) -> None:
        own = self._of(follower).own
        found = [(*key, position) for key, (position, by_handler) in own.items() if not by_handler]
        for stream, writer, position in found:
            own[stream, writer] = position, True
        self._found, self.rowcount = list(found), len(found)

    def _record(
        self, follower: str, stream: str, writer: str, position: Token, by_handler: bool
    ) -> None:
        own = self._of(follower).own
        before, known = own.get((stream, writer), (-1, by_handler))
        own[stream, writer] = max(position, before), known

    def _lower(self, at: Token, follower: str, stream: str, above: Token) -> None:
        own = self._of(follower).own
        for key, (position, by_handler) in own.items():
            if key[0] == stream and position > above:
                own[key] = at, by_handler

    def _forget(self, follower: str, stream: str, writer: str) -> None:
        self._of(follower).own.pop((stream, writer), None)

    # -- handlers ---------------------------------------------------------------------

    def _handler_positions(self, follower: str) -> None:
        handlers = self.records.get(follower, FollowerRecords()).handlers
        self._found = [(*place, *at) for place, at in sorted(handlers.items())]

    def _handler_position(self, follower: str, *place: str) -> None:
        at = self.records.get(follower, FollowerRecords()).handlers.get(_place(place))
        self._found = [] if at is None else [(at.position,)]

    def _record_handler(
        self,
        follower: str,
        handler: str,
        stream: str,
        writer: str,
        position: Token,
        started_from: Token | None,
    ) -> None:
        self._server.require_confirmed()
        handlers = self._of(follower).handlers
        before = handlers.get((handler, stream, writer))
        now = self._server.incarnation
        if before is None:
            handlers[handler, stream, writer] = HandlerPosition(position, started_from, now)
        elif before.position < position:
            handlers[handler, stream, writer] = before._replace(position=position, incarnation=now)

    def _advance(
        self, upto: Token, follower: str, handler: str, stream: str, writer: str, after: Token
    ) -> None:
        handlers = self._of(follower).handlers
        place = (handler, stream, writer)
        at = handlers.get(place)
        self.rowcount = int(at is not None and at.position == after)
        if at is not None and self.rowcount:
            self._server.require_confirmed()
            handlers[place] = at._replace(position=upto, incarnation=self._server.incarnation)

    def _put(self, at: Token, follower: str, *place: str) -> None:
        handlers = self._of(follower).handlers
        before = handlers.get(_place(place))
        if before is not None:
            self._server.require_confirmed()
            now = self._server.incarnation
            handlers[_place(place)] = before._replace(position=at, incarnation=now)


def _place(words: tuple[str, ...]) -> Place:
    handler, stream, writer = words
    return handler, stream, writer


class FollowerDatabase:
    """Runs transactions of followers serially (implements ``storage.database.Database``).

    :param trip: awaited before the transaction and before its reply: takes time, and
        may raise ``DatabaseAway``
    :param next_fault: returns the fault of a transaction: "again" (the work runs twice, as after a
        deadlock), "lost" or "unknown" (the reply to COMMIT is lost, without or with effect), or
        anything else for none
    """

    def __init__(
        self,
        trip: Callable[[str], Any],
        next_fault: Callable[[str], str],
        store: FollowerRecordStore,
    ) -> None:
        self._trip = trip
        self._next_fault = next_fault
        self._store = store

    async def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Run ``work`` in one transaction; see :class:`synrepl.storage.database.Database`."""
        await self._trip(name)
        broken = "" if read_only else self._next_fault(name)
        if broken == "again":
            self._attempt(work)
        txn, result = self._attempt(work)
        if broken != "lost":
            self._store.records = txn.records
            for effect in txn.effects:
                effect()
        if broken in ("lost", "unknown"):
            raise CommitUnknown(where="the simulation", name=name, xid=0, reason=broken)
        await self._trip(name)
        return result

    def _attempt(self, work: Callable[[Transaction], T]) -> tuple[FollowerTransaction, T]:
        txn = FollowerTransaction(self._store)
        return txn, work(txn)  # type: ignore[arg-type]


class FollowerRecordStore:
    """The recorded positions of all followers, by name.

    :param server: the database server, which may be unconfirmed
    :param lost_since: rows of :data:`~synrepl.storage.incarnations.LOST_SINCE`
    :param floors: of streams, in the present incarnation
    :ivar loss_notices: rows of handlers that were informed of losses
    """

    def __init__(
        self,
        server: MemoryServer | None = None,
        lost_since: Callable[[int], list[Record]] = lambda number: [],
        floors: Callable[[], Mapping[str, Token]] = dict,
    ) -> None:
        self.server = MemoryServer() if server is None else server
        self.lost_since = lost_since
        self.floors = floors
        self.loss_notices: list[Values] = []
        self.records: dict[str, FollowerRecords] = {}

    def own(self, follower: str) -> Mapping[Key, Token]:
        """The recorded positions of a follower."""
        found = self.records.get(follower)
        return {} if found is None else found.positions()

    def handler(self, follower: str, handler: str) -> Mapping[Key, Token]:
        """The recorded positions of one of its handlers."""
        found = self.records.get(follower)
        if found is None:
            return {}
        return {
            (stream, writer): at.position
            for (name, stream, writer), at in found.handlers.items()
            if name == handler
        }

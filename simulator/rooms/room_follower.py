"""A follower of the streams of rooms, which reads facts page by page, up to announced positions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from simulator.clock import Process
from simulator.rooms.process_database import InterruptedProcessDatabase
from simulator.rooms.room_processes import AnnouncedPositions, RestartedProcess, RoomSurroundings
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Range, Token
from synrepl.rooms import StateKey
from synrepl.storage.database import Transaction
from synrepl.storage.postgres.store import PostgresStore
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.tables.heads import current_state
from synrepl.storage.rooms.tables.numbers import find_room
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row
from synrepl.streams.synapse.backfill import BackfillRow
from synrepl.streams.synapse.caches import CachesRow
from synrepl.streams.synapse.events import AllStateRow, EventRow, StateRow

#: Rows of a page: so few that most ranges take several.
PAGE_ROWS = 4


class SimulatedRoomFollower(RestartedProcess):
    """Reads the facts of each writer of each stream. Its positions outlive it.

    :ivar facts: what it has read, by stream and token
    :ivar twice: the facts that it has read more than once
    :ivar states: what it has read as the current state when it heard that all of it changed, by token
    """

    def __init__(self, surroundings: RoomSurroundings, announcements: AnnouncedPositions) -> None:
        self._announcements = announcements
        self._read_to: dict[tuple[str, str], Token] = {}
        self._streams = {stream.name: stream for stream in ROOM_STREAMS}
        self.facts: dict[str, dict[Token, Fact]] = {name: {} for name in self._streams}
        self.twice: list[tuple[str, Token]] = []
        self.states: dict[Token, dict[StateKey, str]] = {}
        super().__init__(surroundings, "follower")

    def started(self, process: Process, database: InterruptedProcessDatabase) -> None:
        """Read on where the one before it was."""
        store = self._surroundings.store(process, database)
        process.spawn("follow", self._follow(process, store, database))

    async def _follow(
        self, process: Process, store: PostgresStore, database: InterruptedProcessDatabase
    ) -> None:
        while True:
            for key, announced in sorted(self._announcements.positions.items()):
                try:
                    await self._read(store, database, self._streams[key[0]], key[1], announced)
                except SynreplError:
                    continue
            await process.sleep(process.random())

    async def _read(
        self,
        store: PostgresStore,
        database: InterruptedProcessDatabase,
        stream: Stream,
        writer: str,
        upto: Token,
    ) -> None:
        key = stream.name, writer
        while self._read_to.get(key, 0) < upto:
            span = Range(self._read_to.get(key, 0), upto)
            page = await store.page(stream, span, writer, PAGE_ROWS)
            for fact in page.facts:
                for row in fact.rows:
                    if isinstance(row, AllStateRow):
                        read = partial(_read_state, room_id=row.room_id)
                        self.states[fact.token] = await database.run(
                            f"read the current state of {row.room_id}", read, read_only=True
                        )
            for fact in page.facts:
                if fact.token in self.facts[stream.name]:
                    self.twice.append((stream.name, fact.token))
                self.facts[stream.name][fact.token] = fact
            self._read_to[key] = page.upto

    @property
    def is_there(self) -> bool:
        """Whether it has read up to all announced positions."""
        return self.process.alive and all(
            self._read_to.get(key, 0) >= position
            for key, position in self._announcements.positions.items()
        )

    def rows(self, stream: str) -> Iterator[tuple[Token, Row]]:
        """The rows that it has read, in the order of their tokens."""
        for token, fact in sorted(self.facts[stream].items()):
            for row in fact.rows:
                yield token, row

    def told(self, room_id: str, after: Token, after_backfilled: Token) -> dict[str, list[int]]:
        """The stream IDs that it has heard of, by event.

        :param after: without facts up to these tokens
        """
        found: dict[str, list[int]] = {}
        for token, row in self.rows("events"):
            if isinstance(row, EventRow) and row.room_id == room_id and token > after:
                found.setdefault(row.event_id, []).append(token)
        for token, row in self.rows("backfill"):
            if isinstance(row, BackfillRow) and row.room_id == room_id and token > after_backfilled:
                found.setdefault(row.event_id, []).append(-token)
        return found

    def current_state(self, room_id: str, after: Token) -> dict[StateKey, str]:
        """The current state of a room, from the changes that it has heard of."""
        current: dict[StateKey, str] = {}
        for token, row in self.rows("events"):
            if isinstance(row, StateRow) and row.room_id == room_id and token > after:
                current.pop((row.type, row.state_key), None)
                if row.event_id is not None:
                    current[row.type, row.state_key] = row.event_id
            elif isinstance(row, AllStateRow) and row.room_id == room_id and token > after:
                # It may be newer than the fact; later facts then lead to it again.
                current = dict(self.states[token])
        return current

    def change_marks(self, room_id: str) -> list[StateRow | AllStateRow]:
        """The changes of a room's current state that it has heard of, also before the room was removed."""
        return [
            row
            for _, row in self.rows("events")
            if isinstance(row, (StateRow, AllStateRow)) and row.room_id == room_id
        ]

    def invalidations(self, room_id: str) -> list[CachesRow]:
        """The invalidations of caches about a room that it has heard of."""
        return [
            row
            for _, row in self.rows("caches")
            if isinstance(row, CachesRow) and row.keys is not None and row.keys[:1] == [room_id]
        ]


def _read_state(txn: Transaction, room_id: str) -> dict[StateKey, str]:
    room = find_room(txn, room_id)
    entries = [] if room is None else current_state(txn, room.room_no)
    return {each.key: each.event_id for each in entries}

"""Fixtures: rooms persisted in a database, and compared with the same rooms in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from simulator.rooms.comparison import compare_room
from synrepl.positions.ledger import Ledger
from synrepl.rooms import (
    Event,
    Room,
    RoomVersion,
    parse_event,
)
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.persisting.limits import DEFAULT_LIMITS, RoomLimits
from synrepl.storage.rooms.tables.incoming import IncomingEvent, PersistedBatch
from synrepl.storage.tables import ensure_tables
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row
from tests.services.world import NullLog
from tests.storage.postgres import PostgresCase, Process
from tests.storage.rooms.blocking_store import EMPTY

T = TypeVar("T")


class IgnoringListener:
    """A :class:`~synrepl.services.writing.commit_listener.CommitListener` that announces nothing."""

    def settled(self, stream: Stream, tokens: Sequence[int], facts: Sequence[Fact]) -> None:
        """Do nothing."""

    def outcome_unknown(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Do nothing."""

    def lease_acquired(self, stream: Stream, writer: str, ledger: Ledger) -> None:
        """Do nothing."""

    def recovered(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Do nothing."""

    def failed_over(self, stream: Stream, writer: str, ledger: Ledger, seen: object) -> None:
        """Do nothing."""


class PersistingProcess:
    """A process that persists.

    :ivar persister: its persister
    """

    def __init__(
        self,
        process: Process,
        limits: RoomLimits = DEFAULT_LIMITS,
        streams: Sequence[Stream] = ROOM_STREAMS,
    ) -> None:
        self.process = process
        self.writer = StreamWriter(
            process.scheduler,
            process.store,
            process.name,
            streams,
            IgnoringListener(),  # type: ignore[arg-type]
            NullLog(),
        )
        self.limits = limits
        self.forget()

    async def persist(
        self, room_id: str, version: RoomVersion, events: Sequence[Event | IncomingEvent]
    ) -> PersistedBatch:
        """Persist events, by default as live ones."""
        incoming = [
            each if isinstance(each, IncomingEvent) else IncomingEvent(each) for each in events
        ]
        return await self.persister.persist(room_id, version.name, incoming)

    def forget(self) -> None:
        """Forget everything about rooms, as after a restart."""
        self.persister = RoomPersister(self.process.scheduler, self.writer, limits=self.limits)


class StoreCase(PostgresCase):
    """A test case with tables of rooms and of their streams.

    :cvar streams: that its processes write
    """

    timeout = 300
    streams: Sequence[Stream] = ROOM_STREAMS

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.one = await self.start_process("one")
        self.database = self.one.process.database

    async def start_process(
        self, name: str, limits: RoomLimits = DEFAULT_LIMITS
    ) -> PersistingProcess:
        """Another process that persists."""
        process = self.process(name)
        await process.database.run("tables", lambda txn: ensure_tables(txn, self.streams))
        started = PersistingProcess(process, limits, self.streams)
        await started.writer.start()
        self.addCleanup(started.writer.stop)
        return started

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Run a work function that reads."""
        return await self.database.run("a test reads", work)

    async def empty(self) -> None:
        """Forget all rooms: those of version 1 share event IDs."""
        self.sql(EMPTY)
        self.one.forget()

    async def check_equal(self, room: Room, what: object = None, orders: bool = True) -> None:
        """A stored room has the events, verdicts, states, audiences and ends of one in memory.

        :param orders: whether stream orderings are compared
        """
        await self.read(lambda txn: compare_room(txn, room, what, orders))


def reparsed(event: Event) -> Event:
    """The same event from its bytes, as another process has it."""
    return parse_event(event.raw, event.version)

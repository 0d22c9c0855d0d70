"""The processes of a simulation of rooms: they persist, maintain and follow, and start again when they are killed."""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from simulator.clock import Process, VirtualClock
from simulator.rooms.interruptions import InterruptsTransactions
from simulator.rooms.process_database import Committed, InterruptedProcessDatabase
from simulator.rooms.room_model import GivenBatch
from simulator.rooms.server import SimulatedServer
from simulator.transcript import Transcript
from simulator.truth import Violations
from synrepl.core.errors import SynreplError, Unavailable
from synrepl.core.tokens import Token
from synrepl.positions.ledger import Ledger
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.postgres.store import PostgresStore
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.tables.incoming import PersistedBatch
from synrepl.storage.store import Observation
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row

T = TypeVar("T")

#: Seconds until a killed process starts again, at most.
DOWN_S = 1.0


class ProcessGone(Unavailable):
    """process {name!r} was killed"""


class RoomSurroundings:
    """What all processes of a simulation have around them.

    :ivar committed: called with the name of a process and of a transaction that was committed
    """

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        server: SimulatedServer,
        transcript: Transcript,
        violations: Violations,
        interruptions: InterruptsTransactions,
        committed: Committed,
    ) -> None:
        self.clock = clock
        self.random = random
        self.server = server
        self.transcript = transcript
        self._interruptions = interruptions
        self.committed = committed
        self._violations = violations
        self._processes: list[Process] = []

    def process(
        self, name: str, interruptions: InterruptsTransactions | None = None
    ) -> tuple[Process, InterruptedProcessDatabase]:
        """A new process, and its database.

        :param interruptions: those of its transactions; by default those of the simulation
        """
        process = Process(self.clock, name, self._failed, self.random.random)
        self._processes.append(process)
        database = InterruptedProcessDatabase(
            process,
            self.server,
            self.transcript,
            interruptions or self._interruptions,
            self.committed,
        )
        return process, database

    def store(self, process: Process, database: InterruptedProcessDatabase) -> PostgresStore:
        """The store of a process."""
        return PostgresStore(process, database, database.open_session, process.name)

    def dispose(self) -> None:
        """End all processes."""
        for each in self._processes:
            each.dispose()

    def _failed(self, name: str, failure: Failure) -> None:
        self._violations.add(
            "CRASH", "{name}: {failure}", name=name, failure=failure.getTraceback()
        )


class RestartedProcess:
    """A process that starts again after it was killed.

    :ivar process: the one that runs, or the last one
    """

    def __init__(self, surroundings: RoomSurroundings, name: str) -> None:
        self.name = name
        self._surroundings = surroundings
        self._pending: list[Deferred[Any]] = []
        self.process, self.database = self._new()

    def _new(self) -> tuple[Process, InterruptedProcessDatabase]:
        process, database = self._surroundings.process(self.name)
        process.on_kill(self._killed)
        self.started(process, database)
        return process, database

    def started(self, process: Process, database: InterruptedProcessDatabase) -> None:
        """It has started, with nothing in memory."""

    def ask(self, work: Coroutine[Any, Any, T]) -> Deferred[T]:
        """Run a coroutine in the process.

        The result fails with :class:`ProcessGone` when the process is killed.
        """
        answer: Deferred[T] = Deferred()
        if not self.process.alive:
            work.close()
            answer.errback(ProcessGone(name=self.name))
            return answer
        self._pending.append(answer)

        def done(result: T | Failure) -> None:
            if answer in self._pending:
                self._pending.remove(answer)
                answer.callback(result)

        self.process.start(work).addBoth(done)
        return answer

    def _killed(self) -> None:
        surroundings = self._surroundings
        surroundings.transcript.add(self.name, "is killed")
        pending, self._pending = self._pending, []
        for each in pending:
            surroundings.clock.callLater(0, each.errback, ProcessGone(name=self.name))
        surroundings.clock.callLater(surroundings.random.random() * DOWN_S, self._restart)

    def _restart(self) -> None:
        self.process, self.database = self._new()


class AnnouncedPositions:
    """What writers announce: their positions.

    Implements :class:`~synrepl.services.writing.commit_listener.CommitListener`.

    :ivar positions: by stream and writer
    """

    def __init__(self) -> None:
        self.positions: dict[tuple[str, str], Token] = {}

    def of(self, writer: str) -> WriterAnnouncements:
        """Those of one process."""
        return WriterAnnouncements(self.positions, writer)


class WriterAnnouncements:
    """The announcements of one process."""

    def __init__(self, positions: dict[tuple[str, str], Token], writer: str) -> None:
        self._positions = positions
        self._writer = writer
        self._ledgers: dict[str, Ledger] = {}

    def _announce(self, stream: Stream) -> None:
        key = stream.name, self._writer
        ledger = self._ledgers[stream.name]
        self._positions[key] = max(self._positions.get(key, 0), ledger.position)

    def lease_acquired(self, stream: Stream, writer: str, ledger: Ledger) -> None:
        """The writer continues from a position."""
        self._ledgers[stream.name] = ledger
        self._announce(stream)

    def failed_over(self, stream: Stream, writer: str, ledger: Ledger, seen: Observation) -> None:
        """It never does here."""
        self.lease_acquired(stream, writer, ledger)

    def settled(self, stream: Stream, tokens: Sequence[Token], facts: Sequence[Fact]) -> None:
        """The position may have advanced."""
        self._announce(stream)

    def recovered(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """The position was announced with the lease."""

    def outcome_unknown(self, stream: Stream, rows: Sequence[Row]) -> None:
        """The position does not pass them."""


class QuietLog:
    """A log that goes into the transcript, without what differs from run to run."""

    def __init__(self, transcript: Transcript, who: str) -> None:
        self._transcript = transcript
        self._who = who

    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        """Log at level info."""
        self._transcript.add(self._who, "{text}", text=format)

    def warn(self, format: str, **facts: object) -> None:  # noqa: A002
        """Log at level warning."""
        self._transcript.add(self._who, "! {text}", text=format)


class PersistingProcesses(RestartedProcess):
    """A process that persists events of rooms, and those that come after it."""

    def __init__(
        self, surroundings: RoomSurroundings, name: str, announcements: AnnouncedPositions
    ) -> None:
        self._announcements = announcements
        self._given: dict[str, deque[GivenBatch]] = {}
        super().__init__(surroundings, name)

    def started(self, process: Process, database: InterruptedProcessDatabase) -> None:
        """Acquire the lease; until then it persists nothing."""
        surroundings = self._surroundings
        self._given = {}
        store = surroundings.store(process, database)
        self._writer = StreamWriter(
            process,
            store,
            self.name,
            ROOM_STREAMS,
            self._announcements.of(self.name),
            QuietLog(surroundings.transcript, self.name),
        )
        self._persister = RoomPersister(process, self._writer)
        process.spawn("start", self._start(process, self._writer))

    async def _start(self, process: Process, writer: StreamWriter) -> None:
        while not writer.is_open:
            try:
                await writer.start()
            except SynreplError:
                await process.sleep(0.3)
        self._surroundings.transcript.add(self.name, "is ready")

    @property
    def is_ready(self) -> bool:
        """Whether it runs and has its lease."""
        return self.process.alive and self._writer.is_open

    def under_way(self, room_id: str) -> GivenBatch:
        """The batch of a room that it persists now: the first that it was given."""
        return self._given[room_id][0]

    def persist(self, batch: GivenBatch) -> Deferred[PersistedBatch]:
        """Persist a batch."""
        return self.ask(self._persist(batch))

    async def _persist(self, batch: GivenBatch) -> PersistedBatch:
        made = batch.model.made
        given = self._given.setdefault(made.room_id, deque())
        given.append(batch)
        batch.judged.clear()
        try:
            return await self._persister.persist(made.room_id, made.version.name, batch.events)
        finally:
            given.remove(batch)

    def forget(self) -> None:
        """Forget what it knows about rooms between batches, as if there were too many."""
        if not self._persister.queues.batches:
            self._persister = RoomPersister(self.process, self._writer)

    def lose_session(self) -> None:
        """Let it lose the connection of its lease."""
        self.database.lose_sessions()

"""Fixtures: workers with handlers on a real database; tests announce positions by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from synrepl.core.tokens import Token
from synrepl.services.following.consumer import PositionTracker, Subscription
from synrepl.services.handlers import Batch, Handler, TransactionalHandler
from synrepl.services.sources import CatchUpSources, StorePositions, fetchable_in_order
from synrepl.storage.database import Transaction
from synrepl.storage.followers import handler_positions
from synrepl.storage.followers.handler_positions import HandlerPosition, Place
from synrepl.storage.store import Draft, WriterLease
from synrepl.streams.catalogue import Catalogue
from synrepl.wire.commands import Position
from synrepl.wire.dialects import MODERN, Dialect
from tests.services.world import FakeUpstream, RecordingLog
from tests.storage.postgres import PostgresCase, Process
from tests.storage.samples import FEW, NOTES, note
from tests.support.workers import build_worker

CATALOGUE = Catalogue(FEW)
ONE, TWO = "one", "two"


class CannotProcess(Exception):
    """Raised by a handler for facts that it is set to refuse."""


class RecordingHandler(Handler):
    """Records the notes that it gets.

    :ivar texts: texts of the notes, in order of arrival
    :ivar batches: writer, range and texts of each batch
    :ivar bad: texts at which it fails
    :ivar replayed: texts of replayed dead letters
    """

    streams = frozenset({"notes"})

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.batches: list[tuple[str, Token, Token, list[str]]] = []
        self.resets: list[tuple[str, Token]] = []
        self.bad: set[str] = set()
        self.replayed: list[str] = []

    async def on_rows(self, batch: Batch) -> None:
        texts = texts_of(batch)
        if batch.replayed:
            self.replayed += texts
        if self.bad.intersection(texts):
            raise CannotProcess(f"not {min(self.bad.intersection(texts))}")
        self.texts += texts
        self.batches.append((batch.writer, batch.after, batch.upto, texts))

    async def on_reset(self, stream: str, writer: str, position: Token) -> None:
        self.resets.append((writer, position))


class LinearRecordingHandler(RecordingHandler):
    """The same in the linear view."""

    view = "linear"


class PerWriterRecordingHandler(RecordingHandler):
    """The same per writer."""

    view = "per_writer"


class InsertingHandler(TransactionalHandler):
    """Inserts the notes that it gets into the table ``seen``, and may fail afterwards.

    :ivar bad: texts at which it fails
    """

    streams = frozenset({"notes"})

    def __init__(self) -> None:
        self.bad: set[str] = set()

    def apply(self, txn: Transaction, batch: Batch) -> None:
        texts = texts_of(batch)
        txn.insert_many("INSERT INTO seen (text) VALUES %s", [(text,) for text in texts])
        if self.bad.intersection(texts):
            raise CannotProcess(f"not {min(self.bad.intersection(texts))}")


def texts_of(batch: Batch) -> list[str]:
    """The texts of a batch of notes."""
    return [row.text for row in batch.rows]  # type: ignore[attr-defined]


class WorkerProcess:
    """One process of a worker.

    :ivar log: records what it logs
    """

    def __init__(
        self,
        process: Process,
        handlers: Sequence[Subscription],
        name: str,
        dialect: Dialect,
        earliest: bool,
    ) -> None:
        self.log = RecordingLog()
        self.scheduler = process.scheduler
        worker = build_worker(
            self.scheduler,
            CATALOGUE,
            process.store,
            handlers,
            self.log,
            name=name,
            dialect="modern" if dialect.per_writer else "legacy",
            earliest=earliest,
            database=process.database,
            catch_up_sources=CatchUpSources(
                fetchable_in_order(CATALOGUE, foreign=False),
                process.store,
                StorePositions(process.store),
            ),
        )
        self.waiters = worker.waiters
        self.delivery = worker.delivery
        self.follower = worker.follower
        self._dialect = dialect

    async def start(self) -> None:
        """Load the record, and connect."""
        await self.delivery.start()
        self.follower.connected(FakeUpstream(self._dialect))

    def announce(self, token: Token, writer: str | None = ONE) -> None:
        """Let the master announce a writer's position; None for the linear one."""
        prev = None if writer is None else token
        self.follower.received([Position("notes", writer, prev, token)])

    def at(self, handler: str, writer: str = ONE) -> Token | None:
        """The position of a handler."""
        return self.tracker(handler, writer).position

    def tracker(self, handler: str, writer: str = ONE) -> PositionTracker:
        """The tracker of a handler's position."""
        (consumer,) = (each for each in self.delivery.consumers if each.name == handler)
        return consumer.trackers["notes", writer]

    def position(self, writer: str = ONE) -> Token | None:
        """The position that all handlers have reached."""
        return self.delivery.progress.position(("notes", writer))

    async def record(self) -> None:
        """Record the positions."""
        await self.delivery.progress.record()

    @property
    def logged(self) -> str:
        """The logged lines, as one text."""
        return "\n".join(text for _, text in self.log.lines)


class HandlersCase(PostgresCase):
    """Base of tests with a database of notes, and workers."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.sql("CREATE TABLE seen (id bigint GENERATED ALWAYS AS IDENTITY, text text)")
        self.master = self.process("master")
        self._leases: dict[str, WriterLease] = {}

    async def append(self, *texts: str, writer: str = ONE) -> Token:
        """Append one note per text, and return the last token."""
        if writer not in self._leases:
            self._leases[writer] = await self.master.store.open_writer(writer, [NOTES])
        (written,) = await self._leases[writer].append(
            NOTES, [Draft([[note(text)] for text in texts])], 0
        )
        return written.tokens[-1]

    async def on_record(self, linear: Token, **writers: Token) -> None:
        """Record positions of the stream, as a master does."""
        await self.master.store.record_positions(NOTES, linear, writers)

    async def worker(
        self,
        *handlers: Subscription,
        name: str = "worker1",
        dialect: Dialect = MODERN,
        earliest: bool = True,
    ) -> WorkerProcess:
        """Start a worker."""
        made = WorkerProcess(self.process(name), handlers, name, dialect, earliest)
        self.addCleanup(made.follower.disconnected)
        await made.start()
        return made

    async def reaches(
        self, worker: WorkerProcess, token: Token, writer: str = ONE, announced: str | None = ONE
    ) -> None:
        """Announce a position, and wait until all handlers have reached it."""
        worker.announce(token, announced)
        await self.until(lambda: (worker.position(writer) or 0) >= token)

    def seen(self) -> list[str]:
        """The contents of the table of :class:`InsertingHandler`."""
        return self.rows("SELECT text FROM seen ORDER BY id")

    def rows(self, statement: str, *params: object) -> list[Any]:
        """The first cell of each row."""
        with self.connect().cursor() as cursor:
            cursor.execute(statement, params or None)
            return [row[0] for row in cursor.fetchall()]

    def record_of(self, writer: str = ONE, name: str = "worker1") -> Token | None:
        """The recorded position of a worker itself."""
        found: Token | None = self.sql(
            "SELECT position FROM synrepl._followers WHERE follower = %s AND writer = %s",
            name,
            writer,
        )
        return found

    async def places(self, name: str = "worker1") -> dict[Place, HandlerPosition]:
        """The recorded positions of a worker's handlers."""
        return await self.master.database.run(
            "places", lambda txn: handler_positions.positions(txn, name), read_only=True
        )

    async def settle(self, worker: WorkerProcess, condition: Callable[[], bool]) -> None:
        """Wait for a condition, and record the positions."""
        await self.until(condition)
        await worker.record()

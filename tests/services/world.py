"""Fixtures: the services of a master on a store in memory, on a manual clock."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from synrepl.adapters.caches import make_caches
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.tokens import Range, Token
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.following.consumer import Subscription
from synrepl.services.serving.stream_updates import StreamUpdates
from synrepl.services.status.readiness import (
    Readiness,
    lag_below,
    lease_is_held,
    streams_observable,
)
from synrepl.services.status.status import ProcessIdentity, master_status
from synrepl.services.status.stream_progress import LagTracker, master_progress
from synrepl.services.writing.intake import Intake
from synrepl.storage.memory.lease import MemoryLease
from synrepl.storage.memory.store import MAX_ROWS_PER_STREAM, MemoryStore
from synrepl.storage.store import DatabaseAway
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.declared import declare
from synrepl.streams.definition import Fact
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command
from synrepl.wire.dialects import MODERN, Dialect
from tests.support.masters import CommandRecorder, build_master

T = TypeVar("T")

#: Columns of the stream that the catalogue has besides Synapse's streams.
JOBS = {"job_id": "bigint", "note": "text?", "data": "json?"}


def manual_clock() -> Any:
    """A clock that only tests advance; Twisted names a parameter differently from our types."""
    return Clock()


class NullLog:
    """A log that drops its lines."""

    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        """Do nothing."""

    warn = info


class RecordingLog:
    """A log that records its lines.

    :ivar lines: level and text of each line
    """

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        """Record a line."""
        self.lines.append(("info", format.format(**facts)))

    def warn(self, format: str, **facts: object) -> None:  # noqa: A002
        """Record a line."""
        self.lines.append(("warn", format.format(**facts)))


class FakeUpstream:
    """A fake connection to a master; tests pass the lines to the follower.

    :ivar sent: commands that the follower sent
    """

    def __init__(self, dialect: Dialect = MODERN) -> None:
        self.dialect = dialect
        self.sent: list[Command] = []

    def send(self, command: Command) -> None:
        """Record the command."""
        self.sent.append(command)

    def close(self, reason: CloseReason, text: str | None = None) -> None:
        """Do nothing."""

    def pause(self) -> None:
        """Do nothing."""

    resume = pause


class UnavailableStore(MemoryStore):
    """A store in memory that can be unavailable.

    :ivar away: True to fail every call
    """

    away = False

    async def step(self, what: str) -> None:
        """Fail if the store is unavailable."""
        if self.away:
            raise DatabaseAway(where="memory", reason="a test says so")


class MasterWorld:
    """A master named ``master``.

    :param max_rows_per_stream: rows of each stream kept in memory
    :param senders: the federation senders of the configuration
    :param queued_lines: maximum number of lines queued for a client that does not read
    :param others: the streams that it does not write
    :ivar recorder: its handler
    """

    def __init__(
        self,
        max_rows_per_stream: int = MAX_ROWS_PER_STREAM,
        senders: tuple[str, ...] = ("sender1",),
        queued_lines: int = 10_000,
        others: tuple[str, ...] = ("pushers",),
    ) -> None:
        self.clock = manual_clock()
        self.scheduler = TwistedScheduler(self.clock)
        self.store = UnavailableStore(self.scheduler, max_rows_per_stream)
        self.catalogue = Catalogue((*SYNAPSE_STREAMS, declare("jobs", JOBS)))
        self.log = RecordingLog()
        self.coherence = Coherence(make_caches(), self.catalogue, self.log)
        self.recorder = CommandRecorder()
        self.services = build_master(
            self.scheduler,
            self.store,
            self.coherence,
            self.catalogue,
            self.log,
            own=[stream for stream in self.catalogue if stream.name not in others],
            handlers=[Subscription(self.recorder, name="recorder")],
            senders=senders,
            queued_lines=queued_lines,
        )
        self.publisher = self.services.publisher
        self.throughput = self.services.throughput
        self.waiters = self.services.waiters
        self.announcer = self.services.announcer
        self.writer = self.services.writer
        self.master = self.services.master
        self.trimmer = self.services.trimmer
        self.intake = Intake(self.catalogue, self.writer)
        self.updates = StreamUpdates(
            self.scheduler, self.catalogue, self.announcer.states, self.store, self.log
        )
        self.watch = LagTracker(
            self.scheduler, partial(master_progress, self.announcer.states, self.writer)
        )
        self.readiness = Readiness(
            [
                streams_observable(self.announcer),
                lease_is_held(self.writer),
                lag_below(self.watch, 60.0),
            ]
        )
        self.identity = ProcessIdentity("example.org", "master", "1.2.3", self.clock.seconds())

    async def start(self) -> None:
        """Start it as a daemon does."""
        await self.writer.start()
        await self.announcer.start()
        self.readiness.started()

    def last(self, stream: str) -> Token:
        """The last token that the sequence of a stream has given out."""
        return done(self.store.observe([self.catalogue[stream]]))[stream].last

    def facts(self, stream: str) -> list[Fact]:
        """All facts of a stream in the store."""
        page = self.store.page(self.catalogue[stream], Range(0, 2**62), None, 1_000_000)
        return list(done(page).facts)

    def reserved_by_other(self, stream: str, count: int) -> MemoryLease:
        """Reserve tokens as another writer, ``other``, and wake the announcer."""
        lease = done(self.store.open_writer("other", [self.catalogue[stream]]))
        done(lease.reserve(self.catalogue[stream], count, 0))
        self.announcer.wake(stream)
        return lease

    def stop(self) -> None:
        """Stop it, leaving no timer."""
        done(self.announcer.stop())
        self.watch.stop()

    def status(self) -> dict[str, Any]:
        """The current status."""
        return master_status(
            self.identity,
            self.master,
            self.announcer,
            self.writer,
            self.throughput,
            self.intake,
            self.watch.measure(),
            self.trimmer.counts,
            self.coherence,
            self.clock.seconds(),
        )


def done(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that does not have to wait."""
    results: list[T | Failure] = []
    Deferred.fromCoroutine(coroutine).addBoth(results.append)
    (result,) = results
    if isinstance(result, Failure):
        result.raiseException()
    return result


def started(
    max_rows_per_stream: int = MAX_ROWS_PER_STREAM,
    senders: tuple[str, ...] = ("sender1",),
    queued_lines: int = 10_000,
) -> MasterWorld:
    """A started master; see :class:`MasterWorld`."""
    world = MasterWorld(max_rows_per_stream, senders, queued_lines)
    done(world.start())
    return world

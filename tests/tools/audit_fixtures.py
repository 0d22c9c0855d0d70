"""Fixtures of cache audits: a process with caches of data that tests change."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from math import inf
from random import Random
from typing import Any
from unittest import TestCase

from twisted.internet.defer import Deferred

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.caches.cache import Cache
from synrepl.caches.entries import Entry
from synrepl.caches.registry import Caches
from synrepl.caches.runtime import CacheRuntime
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.waiting.applied_positions import MasterPositions
from synrepl.storage.store import Draft
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.declared import declare
from synrepl.streams.effects import Key
from synrepl.streams.row import Row
from synrepl.streams.synapse.caches import CACHES, CachesRow
from synrepl.streams.synapse.events import EVENTS
from synrepl.tools.audit.audit import Auditor
from synrepl.tools.audit.missed_rows import MissedRows
from synrepl.tools.audit.settlement import Settlement
from tests.services.world import RecordingLog, UnavailableStore, done, manual_clock
from tests.support.masters import build_master

#: Part of cached values, which must not appear in reports or logs.
SECRET = "s3cret"

JOBS = declare("jobs", {"job_id": "bigint"})


class AuditedProcess:
    """A master, another writer ``other``, and the cache ``name_of`` of :attr:`data`.

    The auditor and its parts are made here, because a test needs samples that are not random.

    :ivar data: the contents of the "database"
    :ivar loads: number of loads
    """

    def __init__(self, declare_more: Callable[[Caches], object] = lambda caches: None) -> None:
        self.clock = manual_clock()
        self.scheduler = TwistedScheduler(self.clock)
        self.store = UnavailableStore(self.scheduler)
        self.catalogue = Catalogue((CACHES, EVENTS, JOBS))
        self.log = RecordingLog()
        self.data: dict[Any, Any] = {}
        self.loads = 0
        caches = self.caches = Caches(
            CacheRuntime(Deferred, Deferred.fromCoroutine, self.clock.seconds)
        )

        @caches.cached(by_name=True, name="name_of")
        def name_of(key: str) -> Any:
            self.loads += 1
            return self.data.get(key)

        self.name_of = name_of
        declare_more(caches)
        self.coherence = Coherence(caches, self.catalogue, self.log)
        self.coherence.check()
        services = build_master(
            self.scheduler, self.store, self.coherence, self.catalogue, self.log
        )
        self.announcer = services.announcer
        self.writer = services.writer
        own = MasterPositions(self.announcer, self.writer)
        self.settlement = Settlement(
            self.clock,
            self.catalogue,
            self.store,
            own,
            services.waiting,
            has_in_memory_streams=True,
        )
        self.rows = MissedRows(self.coherence, self.catalogue, self.store)
        self.auditor = Auditor(
            self.scheduler, self.coherence, self.settlement, self.rows, self.log, Random(1)
        )
        done(self.writer.start())
        done(self.announcer.start())
        self.other = done(self.store.open_writer("other", list(self.catalogue)))
        self.poll()

    def stop(self) -> None:
        """Stop the process without leaving a timer."""
        self.scheduler.stop()
        done(self.announcer.stop())

    def cache(self, name: str = "name_of") -> Cache:
        """The only open cache with a name."""
        (found,) = self.caches.named(name)
        return found

    def entry(self, key: Key, name: str = "name_of") -> Entry | None:
        """The entry of a key."""
        return self.cache(name).entries.get(key)

    def invalidation(self, key: Key | None, name: str = "name_of") -> CachesRow:
        """A row that invalidates a key; None for all keys."""
        return CachesRow(name, None if key is None else list(key), 0)

    def commit_as_other(self, *rows: Row) -> None:
        """Commit a fact as another process; this one has not received it yet."""
        stream = CACHES if isinstance(rows[0], CachesRow) else self._stream_of(rows[0])
        done(self.other.append(stream, [Draft([rows])], 0))

    def commit_as_master(self, *rows: Row) -> None:
        """Commit a fact as this process."""
        stream = CACHES if isinstance(rows[0], CachesRow) else self._stream_of(rows[0])
        done(self.writer.append(stream, [rows]))

    def poll(self) -> None:
        """Make the announcer poll the database."""
        self.announcer.wake_all()
        self.clock.advance(0)

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> list[Any]:
        """Start a coroutine; its result is added to the returned list."""
        ended: list[Any] = []
        Deferred.fromCoroutine(coroutine).addBoth(ended.append)
        return ended

    def audit(self, keys: int = 100) -> dict[str, Any]:
        """Run an audit that waits only for reactor turns, and return its report."""
        ended = self.start(self.auditor.audit(keys))
        while not ended and self.clock.getDelayedCalls()[0].getTime() <= self.clock.seconds():
            self.clock.advance(0)
        (report,) = ended
        found: dict[str, Any] = report.to_json()
        return found

    def _stream_of(self, row: Row) -> Any:
        return next(s for s in self.catalogue if type(row) in s.kinds.values())


def nonzero_counts(report: dict[str, Any]) -> dict[str, int]:
    """The nonzero counts of a report."""
    return {name: n for name, n in report.items() if isinstance(n, int) and n}


class AuditCase(TestCase):
    """A process with three entries."""

    def new_process(
        self, declare_more: Callable[[Caches], object] = lambda caches: None
    ) -> AuditedProcess:
        process = AuditedProcess(declare_more)
        self.addCleanup(process.stop)
        return process

    def setUp(self) -> None:
        self.process = self.new_process()
        for key in "abc":
            self.process.data[key] = {"secret": SECRET + key}
            self.process.name_of(key)

    def store_outdated(self, key: str, value: object, moment: int) -> None:
        """Make the cache hold an outdated value, which it never does by itself."""
        entries = self.process.cache().entries
        self.assertTrue(entries.store((key,), Entry(value, inf, moment)))

"""A writer that has lost its lease reports whether an operator is needed."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.services.status.readiness import lease_is_held
from synrepl.services.writing.commit_listener import NullCommitListener
from synrepl.services.writing.stream_writer import StreamWriter, WriterAway
from synrepl.storage.memory.store import TAKEOVER_S, MemoryStore
from synrepl.storage.store import AppendResult, WriterTaken
from synrepl.streams.declared import declare
from synrepl.streams.definition import UNTAGGED
from tests.services.world import RecordingLog, manual_clock

JOBS = declare("jobs", {"name": "text"})
Job = JOBS.kinds[UNTAGGED]


class GatedStore(MemoryStore):
    """Lets a test go first when a name is taken."""

    gate: Deferred[None] | None = None

    async def step(self, what: str) -> None:
        gate, self.gate = (self.gate, None) if what == "open writer" else (None, self.gate)
        if gate is not None:
            await gate


class LosingTheLease(SynchronousTestCase):
    """The session of ``w1`` is cut, and another process is ``w1`` before it can be again."""

    def setUp(self) -> None:
        self.clock = manual_clock()
        scheduler = TwistedScheduler(self.clock)
        self.addCleanup(scheduler.stop)
        self.store = GatedStore(scheduler)
        self.writer = StreamWriter(
            scheduler, self.store, "w1", [JOBS], NullCommitListener(), RecordingLog()
        )
        self.ready = lease_is_held(self.writer)
        self.wait(self.writer.start())
        gate: Deferred[None] = Deferred()
        self.store.gate = gate
        self.store.crash_session(JOBS, "w1")
        self.other: Any = self.wait(self.store.open_writer("w1", [JOBS]))
        gate.callback(None)

    def wait(self, coroutine: Any) -> Any:
        """Its result, once some time has gone by."""
        deferred = Deferred.fromCoroutine(coroutine)
        self.clock.pump([0.1] * 3)
        return self.successResultOf(deferred)

    def append(self) -> Any:
        """The outcome of an append."""
        deferred = Deferred.fromCoroutine(self.writer.append(JOBS, [[Job("a")]]))
        self.clock.advance(0)
        return deferred

    def test_a_first_refusal_is_not_reported(self) -> None:
        self.failureResultOf(self.append(), WriterAway)
        self.clock.pump([0.1] * int(TAKEOVER_S * 12))  # refused once
        self.failureResultOf(self.append(), WriterAway)
        self.assertEqual(self.ready(), "the name of writer 'w1' is not held")

    def test_reports_the_refusal_after_two_in_a_row(self) -> None:
        self.clock.pump([0.1] * int(TAKEOVER_S * 25))
        failure = self.failureResultOf(self.append(), WriterTaken)
        self.assertIn("give this one another instance_name", str(failure.value))
        self.assertIn("is not held: writer 'w1' of stream 'jobs' is held by", str(self.ready()))

    def test_acquires_the_lease_again_when_it_is_free(self) -> None:
        self.clock.pump([0.1] * int(TAKEOVER_S * 25))
        self.wait(self.other.close())
        self.clock.pump([0.1] * int(TAKEOVER_S * 10))
        self.assertIsNone(self.ready())
        self.assertIsNone(self.writer.refusal)  # which is no answer to whatever comes next
        self.assertIsInstance(self.successResultOf(self.append()), AppendResult)

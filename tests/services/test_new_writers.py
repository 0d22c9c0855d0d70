"""When clients that know writers receive a position of one that has not written yet."""

from __future__ import annotations

from typing import Any, cast
from unittest import TestCase

from twisted.internet.protocol import Protocol

from synrepl.adapters.tcp.master import MasterFactory
from synrepl.storage.store import Draft
from synrepl.testing.links import Link
from tests.services.world import MasterWorld, done


class Lines(Protocol):
    """A client that keeps what it hears of one stream."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._data = b""

    def dataReceived(self, data: bytes) -> None:
        """Keep it."""
        self._data += data

    def received(self) -> list[str]:
        """Lines of the stream received since the last call."""
        lines, self._data = self._data.decode().splitlines(), b""
        return [line for line in lines if line.split(" ")[1:2] == [self._stream]]


class AnnouncingNewWriters(TestCase):
    """Real workers go back to 0 when a writer is announced there (seen with 1.43)."""

    def setUp(self) -> None:
        self.world = MasterWorld()
        self.jobs = self.world.catalogue["jobs"]
        # As every stream has one for plain SQL: known to the database, and nobody's now.
        done(done(self.world.store.open_writer("other", [self.jobs])).close())
        done(self.world.start())
        self.client = Lines("jobs")
        peer = MasterFactory(self.world.scheduler, self.world.master, "example.org")
        link = Link(self.world.clock, cast(Any, self.client), cast(Any, peer.buildProtocol(None)))
        link.connect()
        link.client.write(b"NAME bob\nREPLICATE\n")
        self.world.clock.pump([0.1] * 10)
        self.addCleanup(self.world.stop)

    def test_does_not_announce_a_writer_that_never_wrote(self) -> None:
        self.assertEqual(self.client.received(), ["POSITION jobs master 0 0"])

    def test_introduces_a_writer_before_its_first_row(self) -> None:
        self.client.received()
        lease = done(self.world.store.open_writer("other", [self.jobs]))
        row = self.jobs.kinds[""](7, None, None)
        for _ in range(2):
            done(lease.append(self.jobs, [Draft([[row]])], 0))
            self.world.announcer.wake("jobs")
            self.world.clock.pump([0.1] * 4)
        self.assertEqual(
            [line for line in self.client.received() if " other " in line],
            [
                "POSITION jobs other 0 0",
                "RDATA jobs other 1 [7,null,null]",
                "RDATA jobs other 2 [7,null,null]",
            ],
        )

    def test_an_announced_writer_advances_with_the_others(self) -> None:
        """Otherwise a real worker's position would be that of the writer furthest behind."""
        self.client.received()
        done(self.world.intake.append("jobs", b"[[7],[8]]"))
        self.world.clock.pump([0.1] * 30)
        self.assertEqual(self.client.received()[3:], [])
        lease = done(self.world.store.open_writer("other", [self.jobs]))
        done(lease.append(self.jobs, [Draft([[self.jobs.kinds[""](9, None, None)]])], 0))
        self.world.announcer.wake("jobs")
        self.world.clock.pump([0.1] * 30)
        self.assertEqual(
            self.client.received(),
            [
                "POSITION jobs other 0 0",
                "RDATA jobs other 3 [9,null,null]",
                "POSITION jobs master 2 3",
            ],
        )

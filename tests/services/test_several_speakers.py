"""On a bus, outdated processes may announce a writer, too: no fact is lost."""

from __future__ import annotations

from unittest import TestCase

from synrepl.streams.rows import RowCodec
from tests.services.manual_pubsub import NOTES, ManualPubSub, PubSubProcess
from tests.services.world import done


class FollowingWithSeveralSpeakers(TestCase):
    """The lines that ``reader`` gets about ``writer`` are given word for word."""

    def setUp(self) -> None:
        self.pubsub = ManualPubSub()
        self.writer, self.reader = (
            PubSubProcess(self.pubsub, "writer"),
            PubSubProcess(self.pubsub, "reader"),
        )
        self.pubsub.settle()

    def write(self, *facts: str) -> None:
        """Write facts with one row per letter, without announcing them on the bus."""
        decode = RowCodec(NOTES).decode
        self.writer.wires.cut()
        rows = [[decode(b'["%b"]' % row.encode()) for row in fact] for fact in facts]
        done(self.writer.writer.append(NOTES, rows))

    def receive(self, *lines: bytes) -> None:
        self.reader.bus.messages_received(lines)
        self.pubsub.clock.advance(0)

    def read(self) -> list[tuple[int, str]]:
        facts = self.reader.handler.facts.get(("notes", "writer"), [])
        return [(fact.token, "".join(row.text for row in fact.rows)) for fact in facts]  # type: ignore[attr-defined]

    def test_fetches_a_batch_that_a_position_interrupts(self) -> None:
        self.write("ab", "c")
        self.receive(
            b'RDATA notes writer batch ["a"]',
            b"POSITION notes writer 0 0",
            b'RDATA notes writer 1 ["b"]',
            b'RDATA notes writer 2 ["c"]',
        )
        self.assertEqual(self.read(), [(1, "ab"), (2, "c")])

    def test_delivers_a_batch_of_the_next_connection_without_fetching_it(self) -> None:
        self.write("ab", "cd")
        self.receive(b'RDATA notes writer batch ["a"]', b"POSITION notes writer 0 0")
        self.reader.wires.cut()
        self.reader.connect()
        self.receive(
            b"POSITION notes writer 1 1",
            b'RDATA notes writer batch ["c"]',
            b'RDATA notes writer 2 ["d"]',
        )
        self.assertEqual(self.read(), [(1, "ab"), (2, "cd")])
        self.assertEqual(self.reader.follower.counts.fetched_rows, {"notes": 2})  # "a" and "b"

    def test_fetches_facts_that_an_outdated_first_position_hides(self) -> None:
        self.write("a", "b", "c")
        self.receive(b"POSITION notes writer 1 1")
        self.reader.wires.cut()
        self.reader.connect()
        self.receive(b"POSITION notes writer 1 1", b'RDATA notes writer 3 ["c"]')
        self.assertEqual(self.read(), [(1, "a"), (2, "b"), (3, "c")])

    def test_checks_only_the_first_fact_of_a_connection_for_a_gap(self) -> None:
        self.write("a", "b", "c", "d")
        self.receive(b"POSITION notes writer 1 1", b'RDATA notes writer 2 ["b"]')
        self.receive(b'RDATA notes writer 4 ["d"]')  # 3 would be another writer's
        self.assertEqual(self.read(), [(1, "a"), (2, "b"), (4, "d")])

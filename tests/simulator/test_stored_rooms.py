"""What simulations of clients note of stored rooms."""

from __future__ import annotations

from unittest import TestCase

from simulator.clients.stored_rooms import StoredRooms
from simulator.rooms.server import SimulatedServer
from synrepl.positions.vector import PositionVector
from synrepl.storage.database import Transaction


class CoveredFacts(TestCase):
    """Facts of two writers in two rooms."""

    def setUp(self) -> None:
        self.server = SimulatedServer()
        self.addCleanup(self.server.close)
        self.stored = StoredRooms(self.server)
        self.write("w2", 3, "!one")
        self.write("w1", 4, "!two")
        self.write("w1", 5, "!one")
        self.stored.committed()

    def write(self, writer: str, token: int, room_id: str) -> None:
        def work(txn: Transaction) -> None:
            txn.execute(
                "INSERT INTO synrepl.events (stream_id, row_no, writer, kind, room_id)"
                " VALUES (%s, 0, %s, 'state-all', %s)",
                (token, writer, room_id),
            )

        self.server.operator.run("write", work)

    def is_all_covered(self, vector: str) -> bool:
        return self.stored.is_all_covered(PositionVector.parse(vector))

    def test_a_position_of_one_writer_says_nothing_of_another(self) -> None:
        self.assertTrue(self.is_all_covered("3~w1.5"))
        self.assertTrue(self.is_all_covered("0~w1.9~w2.3"))
        self.assertFalse(self.is_all_covered("2~w1.9"))
        self.assertFalse(self.is_all_covered("2~w2.9"))
        self.assertFalse(self.is_all_covered("4"))

    def test_later_facts_count(self) -> None:
        self.assertTrue(self.is_all_covered("5"))
        self.write("w2", 6, "!one")
        self.stored.committed()
        self.assertFalse(self.is_all_covered("5~w1.9"))
        self.assertTrue(self.is_all_covered("5~w2.6"))

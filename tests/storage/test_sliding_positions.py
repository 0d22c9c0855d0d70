"""Connections of sliding sync, in tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from synrepl.driver.blocking import BlockingDatabase
from synrepl.storage.clients import sliding_positions
from synrepl.storage.clients.sliding_positions import (
    MAX_FOLLOWING,
    ConnectionName,
    PositionKey,
    end_unused,
    follow_position,
    open_connection,
    read_position,
)
from synrepl.storage.database import Transaction
from tests.storage.postgres import PostgresCase

T = TypeVar("T")

NAME = ConnectionName("@a:x", "D", "c")


class PositionsCase(PostgresCase):
    """A database."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.database = BlockingDatabase(self.dsn, "positions")
        self.addCleanup(self.database.close)

    def run_in(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a transaction."""
        return self.database.run("a test", work)

    def open(self, name: ConnectionName = NAME, state: bytes = b"0") -> PositionKey:
        """Open a connection."""
        return self.run_in(lambda txn: open_connection(txn, name, state))

    def follow(self, base: PositionKey, state: bytes = b"1") -> PositionKey | None:
        """Store the position after one."""
        return self.run_in(lambda txn: follow_position(txn, base, state))

    def state(self, key: PositionKey) -> bytes | None:
        """What is stored of a position."""
        found = self.run_in(lambda txn: read_position(txn, key))
        return None if found is None else found.state


class Following(PositionsCase):
    """Which positions of a connection are there."""

    def test_the_one_that_is_used_and_those_after_it_are_kept(self) -> None:
        first = self.open()
        second, third = self.follow(first), self.follow(first, b"2")
        assert second is not None
        assert third is not None
        self.assertEqual([self.state(e) for e in (first, second, third)], [b"0", b"1", b"2"])
        fourth = self.follow(second, b"3")
        assert fourth is not None
        gone = [self.state(each) for each in (first, second, third, fourth)]
        self.assertEqual(gone, [None, b"1", None, b"3"])
        self.assertIsNone(self.follow(third))
        self.assertIsNone(self.follow(PositionKey(fourth.connection_no + 1, fourth.position_no)))

    def test_a_connection_goes_on_until_a_new_one_of_its_name_is_used(self) -> None:
        first = self.open()
        new = self.open(state=b"new")
        self.assertEqual(first.connection_no, new.connection_no)
        second = self.follow(first)
        assert second is not None
        self.assertEqual(self.state(second), b"1")
        self.assertIsNone(self.state(new))
        again = self.open()
        self.follow(again)
        self.assertIsNone(self.state(second))

    def test_repeated_requests_leave_a_number_of_positions(self) -> None:
        first = self.open()
        found = [self.follow(first) for _ in range(MAX_FOLLOWING + 3)]
        kept = [each is not None and self.state(each) is not None for each in found]
        self.assertEqual(kept, [False] * 3 + [True] * MAX_FOLLOWING)
        begun = [self.open(NAME._replace(conn_id="d")) for _ in range(MAX_FOLLOWING + 3)]
        kept = [self.state(each) is not None for each in begun]
        self.assertEqual(kept, [False] * 3 + [True] * MAX_FOLLOWING)


class Ending(PositionsCase):
    """Connections that end."""

    def test_of_too_many_connections_of_a_user_those_end_that_were_not_used_for_longest(
        self,
    ) -> None:
        self.patch(sliding_positions, "MAX_CONNECTIONS", 3)
        other = self.open(ConnectionName("@b:x", "D", "c"))
        keys = []
        for number in range(3):
            keys.append(self.open(NAME._replace(device_id=f"D{number}")))
            self.sql(
                f"UPDATE synrepl._sliding_connections SET used_at = now() - interval '{9 - number} days'"
            )
        self.sql(
            "UPDATE synrepl._sliding_connections SET used_at = now() - interval '20 days'"
            " WHERE device_id = 'D1'"
        )
        keys.append(self.open(NAME._replace(device_id="D3")))
        states = [self.state(each) for each in keys]
        self.assertEqual(states, [b"0", None, b"0", b"0"])
        self.assertEqual(self.state(other), b"0")

    def test_what_is_not_used_ends_with_its_positions(self) -> None:
        day = 24 * 3600.0
        old, used = self.open(), self.open(NAME._replace(conn_id="used"))
        self.sql("UPDATE synrepl._sliding_connections SET used_at = now() - interval '40 days'")
        self.assertEqual(self.state(used), b"0")  # which is a use
        self.assertEqual(self.run_in(lambda txn: end_unused(txn, 30 * day, 10)), 1)
        self.assertEqual((self.state(old), self.state(used)), (None, b"0"))
        count = "SELECT count(*) FROM synrepl._sliding_positions"
        self.assertEqual(self.run_in(lambda txn: txn.execute(count).fetchone()[0]), 1)

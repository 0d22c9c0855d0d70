"""Pages of a room of which most is hidden read what is near them, however often the user came and went."""

from __future__ import annotations

from itertools import product
from unittest.mock import patch

from benchmarks import hidden_room
from benchmarks.rows_read import RowCounter
from synrepl.driver.blocking import BlockingDatabase
from synrepl.rooms import Viewer
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.visibility.pages import PageOrder, PageRequest, visible_page
from tests.storage.postgres import PostgresCase

LIMIT = 10


class _Undo(Exception):
    """Rolls a room back."""


class PagesOfAUserWithManyStays(PostgresCase):
    """In every direction and ordering."""

    def rows_read(self, events: int) -> dict[PageRequest, int]:
        """Rows of events that each page of a room reads."""
        found: dict[PageRequest, int] = {}

        def work(txn: Transaction) -> None:
            hidden_room.fill(txn, events, 50)
            txn.execute("ANALYZE synrepl._room_events, synrepl._state_line, synrepl._room_keys")
            for order, backwards in product(PageOrder, (True, False)):
                request = PageRequest(LIMIT, backwards=backwards, order=order)
                counter = RowCounter(txn, "_room_events")
                viewer = Viewer(hidden_room.OFTEN)
                page = visible_page(counter, hidden_room.ROOM_ID, viewer, request)
                self.assertEqual(len(page.events), LIMIT)
                found[request] = counter.rows
            raise _Undo

        with BlockingDatabase(self.dsn, "pages") as database, self.assertRaises(_Undo):
            database.run("room", work)
        return found

    def test_do_not_read_more_rows_of_a_longer_room(self) -> None:
        with patch("synrepl.storage.rooms.visibility.viewers.RECENT_VERSIONS", 4):
            short, long = self.rows_read(10_000), self.rows_read(40_000)
        for request, rows in long.items():
            self.assertLessEqual(rows, short[request] + 2, request)
            self.assertLessEqual(rows, 10 * LIMIT, request)

"""Which differences of whole events the database explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from synrepl.pipeline.source.database.doubtful_rows import DoubtfulRow
from synrepl.pipeline.source.database.landed_states import BASE
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint
from tests.pipeline.test_landed_states import STREAM, LandedStatesCase

Rows = Sequence[Mapping[str, Any]]


class DoubtfulRows(LandedStatesCase):
    """A row is doubtful if its base is another one than in the database."""

    def doubtful(self, landed: Rows, stored: Rows) -> list[DoubtfulRow]:
        """The rows with another base than those that landed."""
        bases = {row["stream_id"]: row[BASE] for row in stored if row["stored"]}
        return [
            DoubtfulRow(number, row[BASE], bases[number], True, False)
            for row in landed
            if (number := row["stream_id"]) in bases and row[BASE] != bases[number]
        ]

    def explained(self, rows: Sequence[DoubtfulRow], stream: str = STREAM) -> set[int]:
        return set(self.source.explained_rows(stream, rows))

    def damaged(self, stored: Rows, by: int) -> list[DoubtfulRow]:
        """All rows of the database with a base that is some positions away from the right one."""
        return [
            DoubtfulRow(row["stream_id"], row[BASE] + by, row[BASE], True, False)
            for row in stored
            if row["stored"] and row[BASE] is not None
        ]

    async def purged(self, stream: str = STREAM) -> tuple[Rows, Rows]:
        """The rows of a room before and after half of it was purged."""
        made = await self.made(21, backfilled=stream != STREAM)
        before = self.rows(stream)
        point = PurgePoint.of_stream(before[60]["stream_id"])
        if stream != STREAM:  # it came backwards
            point = PurgePoint.of_topological(before[60]["topological_ordering"])
        maintenance = RoomMaintenance(self.one.process.database)
        await maintenance.purge(made.room_id, point, index_check=False)
        return before, self.rows(stream)

    async def test_whose_base_was_purged_are_explained(self) -> None:
        before, after = await self.purged()
        rows = self.doubtful(before, after)
        self.assertGreater(len(rows), 1)
        self.assertEqual(self.explained(rows), {row.stream_id for row in rows})

    async def test_that_are_purged_before_the_question_are_explained(self) -> None:
        before, after = await self.purged()
        (row, *_) = rows = self.doubtful(before, after)
        wrong = row._replace(lake_base=10**6)
        self.assertEqual(self.explained([wrong]), set())
        self.sql("UPDATE synrepl._room_events SET stream_id = NULL WHERE stream_id = %s", row[0])
        self.assertEqual(self.explained(rows), {row.stream_id for row in rows})
        self.assertEqual(self.explained([wrong]), {row.stream_id})

    async def test_of_a_room_that_is_being_forgotten_are_explained(self) -> None:
        before, after = await self.purged()
        rows = self.doubtful(before, after)
        self.sql("UPDATE synrepl._rooms SET room_id = 'forgotten'")
        self.assertEqual(self.explained(rows), {row.stream_id for row in rows})

    async def test_whose_base_is_still_there_are_not(self) -> None:
        _, after = await self.purged()
        there = {row["stream_id"] for row in after if row["stored"]}
        for by in (-1, -2, 1, 2):
            rows = self.damaged(after, by)
            left = self.explained([row for row in rows if row.lake_base in there])
            self.assertEqual(left, set())

    async def test_are_not_explained_by_what_was_purged_before_a_prev_event_that_is_there(
        self,
    ) -> None:
        _, after = await self.purged()
        gone = max(row["stream_id"] for row in after if not row["stored"])
        rows = [
            DoubtfulRow(row["stream_id"], gone, row[BASE], True, False)
            for row in after
            if row["stored"] and row[BASE] is not None and row["stream_id"] > gone + 10
        ]
        self.assertGreater(len(rows), 10)
        # Nearly all rows name a prev event, which would have been the newer one.
        self.assertLess(len(self.explained(rows)), len(rows) / 4)

    async def test_are_not_explained_by_rows_of_other_rooms_and_what_never_was(self) -> None:
        before, after = await self.purged()
        (row,) = self.doubtful(before, after)[:1]
        self.assertEqual(self.explained([row]), {row.stream_id})
        for number in (10**6, row.stream_id + 1, None):
            self.assertEqual(self.explained([row._replace(lake_base=number)]), set())
        last = after[-1]["stream_id"]
        await self.made(25, 5)
        (first, *_) = self.rows(after=last)
        self.assertEqual((first["type"], first[BASE]), ("m.room.create", None))
        other = DoubtfulRow(first["stream_id"], row.lake_base, None, True, False)
        self.assertEqual(self.explained([other]), set())

    async def test_whose_base_was_trimmed_are_explained(self) -> None:
        await self.made(22)
        before = self.rows()
        at = before[50]["stream_id"]
        self.sql("UPDATE synrepl._streams SET trimmed = %s WHERE stream = 'events'", at)
        self.sql("DELETE FROM synrepl.events WHERE stream_id <= %s", at)
        after = self.rows(after=at)
        rows = self.doubtful(before, after)
        self.assertGreater(len(rows), 0)
        self.assertEqual(self.explained(rows), {row.stream_id for row in rows})
        wrong = [
            DoubtfulRow(row["stream_id"], at, row[BASE], True, False)
            for row in after
            if row[BASE] is not None
        ]
        self.assertLess(len(self.explained(wrong)), len(wrong) / 4)

    async def test_that_landed_between_two_completions_are_explained(self) -> None:
        await self.made(23)
        numbers = [row["stream_id"] for row in self.rows()]
        self.sql("UPDATE synrepl._room_heads SET completed_stream_id = %s", numbers[40])
        before = self.rows()
        self.assertEqual(self.doubtful(before, before), [])
        self.sql("UPDATE synrepl._room_heads SET completed_stream_id = %s", numbers[90])
        after = self.rows(after=numbers[40])
        rows = self.doubtful(before, after)
        between = [row for row in rows if row.stream_id <= numbers[90]]
        self.assertGreater(len(between), 0)
        self.assertEqual(self.explained(between), {row.stream_id for row in between})
        # What came after the completion was never said by what came before.
        last = numbers[100]
        self.assertEqual(
            self.explained([DoubtfulRow(last, numbers[80], numbers[99], True, False)]), set()
        )

    async def test_of_history_are_explained_in_the_same_way(self) -> None:
        before, after = await self.purged("room_backfill")
        rows = self.doubtful(before, after)
        self.assertEqual(self.explained(rows, "room_backfill"), {row.stream_id for row in rows})
        there = {row["stream_id"] for row in after if row["stored"]}
        self.assertGreater(len(there), 10)
        wrong = [row for row in self.damaged(after, -1) if row.lake_base in there]
        self.assertGreater(len(wrong), 10)
        self.assertEqual(self.explained(wrong, "room_backfill"), set())
        # What of it came before a completion is not known.
        self.sql("UPDATE synrepl._room_heads SET completed_stream_id = 1")
        right = [row for row in wrong if (row.lake_base or 0) > row.stream_id]
        self.assertEqual(self.explained(wrong, "room_backfill"), {row.stream_id for row in right})

    async def test_with_a_redaction_that_was_taken_back_are_of_completed_rooms(self) -> None:
        await self.made(24, 20)
        number = self.rows()[10]["stream_id"]
        row = DoubtfulRow(number, None, None, False, True)
        self.assertEqual(self.explained([row]), set())
        self.sql("UPDATE synrepl._room_heads SET completed_stream_id = 1")
        self.assertEqual(self.explained([row]), {number})
        self.assertEqual(self.explained([]), set())
        self.assertEqual(self.explained([row], "events"), set())

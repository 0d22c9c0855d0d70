"""Persisting that tells followers too little is found by simulations of rooms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import TestCase
from unittest.mock import patch

from msgspec.structs import replace

from simulator.rooms.simulation import simulate_rooms
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.persisting import batch_rows
from synrepl.storage.rooms.persisting.batch_facts import append_facts
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row
from synrepl.streams.synapse.caches import CachesRow
from synrepl.streams.synapse.events import AllStateRow, StateRow

#: Until a state has changed several times.
STEPS = 4

#: What is appended to a stream instead of some rows; None: nothing.
Changed = Callable[[Sequence[Row]], Sequence[Row] | None]


class ChangedOutbox:
    """An outbox that appends something else."""

    def __init__(self, inner: Outbox, changed: Changed) -> None:
        self._inner = inner
        self._changed = changed

    def append(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Append what is left of rows."""
        left = self._changed(rows)
        if left is not None:
            self._inner.append(stream, left)


class FactsThatAreMissing(TestCase):
    """Facts of batches that a follower does not hear, or that tell too little."""

    def first_violation(self, changed: Changed, all_state_rows: int) -> str:
        """The rule that a simulation breaks when batches append something else."""

        def append(outbox: Outbox, *more: Any) -> Any:
            return append_facts(ChangedOutbox(outbox, changed), *more)  # type: ignore[arg-type]

        with (
            patch.object(batch_rows, "append_facts", append),
            patch("simulator.rooms.simulation.ALL_STATE_ROWS", (all_state_rows,)),
        ):
            violations = simulate_rooms(1, STEPS).violations
        return violations[0].partition(":")[0] if violations else "none"

    def test_a_batch_that_invalidates_nothing_is_found(self) -> None:
        def without(rows: Sequence[Row]) -> Sequence[Row] | None:
            return None if any(isinstance(each, CachesRow) for each in rows) else rows

        self.assertEqual(self.first_violation(without, 1_000), "STALE")

    def test_a_user_whose_membership_changed_is_named(self) -> None:
        def without_users(rows: Sequence[Row]) -> Sequence[Row]:
            return [_without_last_key(each) for each in rows]

        self.assertEqual(self.first_violation(without_users, 1_000), "STALE")

    def test_a_change_without_a_mark_is_found(self) -> None:
        def without(rows: Sequence[Row]) -> Sequence[Row]:
            return [each for each in rows if not isinstance(each, StateRow)]

        self.assertEqual(self.first_violation(without, 1_000), "TOLD")

    def test_a_mark_for_all_changes_that_is_missing_is_found(self) -> None:
        def without(rows: Sequence[Row]) -> Sequence[Row]:
            return [each for each in rows if not isinstance(each, AllStateRow)]

        self.assertEqual(self.first_violation(without, 3), "TOLD")

    def test_a_mark_for_all_changes_that_are_few_is_found(self) -> None:
        def for_all(rows: Sequence[Row]) -> Sequence[Row]:
            return [
                AllStateRow(each.room_id) if isinstance(each, StateRow) else each for each in rows
            ]

        self.assertEqual(self.first_violation(for_all, 1_000), "MARKS")


def _without_last_key(row: Row) -> Row:
    if isinstance(row, CachesRow) and row.keys is not None and len(row.keys) > 1:
        return replace(row, keys=row.keys[:-1])
    return row

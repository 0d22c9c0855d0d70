"""A follower's decisions, and that obeying them loses nothing (invariant R3)."""

from __future__ import annotations

from collections import deque
from unittest import TestCase

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from synrepl.core.tokens import Range
from synrepl.positions.cursor import Cursor, CursorDecision, Fetch, Reset

MACHINE = settings(max_examples=80, stateful_step_count=30, deadline=None)


class ModernTests(TestCase):
    def connected(self, position: int, **options: bool) -> Cursor:
        cursor = Cursor(position, **options)
        self.assertIs(cursor.on_position(position, position), CursorDecision.DUPLICATE)
        return cursor

    def test_rdata_before_the_first_position_is_dropped_on_every_connection(self) -> None:
        cursor = Cursor(5)
        self.assertIs(cursor.on_rdata(6), CursorDecision.NOT_CONNECTED)
        cursor.on_position(5, 5)
        self.assertTrue(cursor.is_connected)
        self.assertIs(cursor.on_rdata(6), CursorDecision.APPLY)
        cursor.connection_lost()
        self.assertFalse(cursor.is_connected)
        self.assertIs(cursor.on_rdata(6), CursorDecision.NOT_CONNECTED)

    def test_what_is_at_or_below_the_position_is_a_duplicate(self) -> None:
        cursor = self.connected(5)
        self.assertIs(cursor.on_rdata(5), CursorDecision.DUPLICATE)
        self.assertIs(cursor.on_rdata(9), CursorDecision.APPLY)
        self.assertEqual(cursor.position, 5)  # not before the work is done
        cursor.applied(9)
        self.assertEqual(cursor.position, 9)
        self.assertIs(cursor.on_rdata(8), CursorDecision.DUPLICATE)

    def test_a_position_that_follows_on_moves_the_cursor(self) -> None:
        cursor = self.connected(5)
        self.assertIs(cursor.on_position(5, 8), CursorDecision.ADVANCED)
        self.assertEqual(cursor.position, 8)

    def test_a_position_that_does_not_follow_on_shows_the_gap(self) -> None:
        cursor = self.connected(5)
        self.assertEqual(cursor.on_position(7, 8), Fetch(Range(5, 8)))
        self.assertIs(cursor.on_rdata(9), CursorDecision.HOLD)
        cursor.caught_up(7)
        self.assertEqual((cursor.position, cursor.on_rdata(9)), (7, CursorDecision.HOLD))
        cursor.caught_up(8)
        self.assertEqual((cursor.position, cursor.on_rdata(9)), (8, CursorDecision.APPLY))

    def test_a_fetch_does_not_outlive_its_connection(self) -> None:
        cursor = self.connected(5)
        cursor.on_position(7, 8)
        cursor.connection_lost()
        self.assertIs(cursor.on_rdata(9), CursorDecision.NOT_CONNECTED)
        self.assertEqual(cursor.on_position(8, 8), Fetch(Range(5, 8)))

    def test_a_second_position_during_a_fetch_makes_it_longer(self) -> None:
        cursor = self.connected(5)
        cursor.on_position(7, 8)
        self.assertEqual(cursor.on_position(8, 9), Fetch(Range(5, 9)))

    def test_only_the_followers_own_position_counts(self) -> None:
        cursor = Cursor(20)  # read from the database, ahead of what the writer has said
        self.assertIs(cursor.on_position(15, 18), CursorDecision.DUPLICATE)
        self.assertEqual(cursor.position, 20)
        self.assertIs(cursor.on_position(18, 25), CursorDecision.ADVANCED)

    def test_a_lower_position_resets_a_stream_that_lives_in_memory(self) -> None:
        cursor = self.connected(20, in_memory=True)
        self.assertEqual(cursor.on_position(3, 3), Reset(Range(0, 3)))
        self.assertEqual((cursor.position, cursor.on_rdata(4)), (0, CursorDecision.HOLD))
        cursor.caught_up(3)
        self.assertIs(cursor.on_rdata(4), CursorDecision.APPLY)

    def test_a_reset_to_nothing_needs_no_fetch(self) -> None:
        cursor = self.connected(20, in_memory=True)
        verdict = cursor.on_position(0, 0)
        assert isinstance(verdict, Reset)
        self.assertTrue(verdict.span.empty)
        self.assertIs(cursor.on_rdata(1), CursorDecision.APPLY)

    def test_without_prev_a_higher_position_must_be_fetched(self) -> None:
        cursor = Cursor(5)
        self.assertEqual(cursor.on_position(None, 8), Fetch(Range(5, 8)))

    def test_rows_that_a_position_was_ahead_of_are_new_where_they_cannot_be_fetched(self) -> None:
        cursor = self.connected(5)
        self.assertEqual(cursor.on_position(8, 8), Fetch(Range(5, 8)))
        cursor.skip(8)
        self.assertEqual(cursor.position, 8)
        for token in (6, 8, 9):
            self.assertIs(cursor.on_rdata(token), CursorDecision.APPLY)
            cursor.applied(token)
            self.assertIs(cursor.on_rdata(token), CursorDecision.DUPLICATE)
        self.assertEqual(cursor.position, 9)
        self.assertIs(cursor.on_position(9, 12), CursorDecision.ADVANCED)
        self.assertIs(cursor.on_rdata(12), CursorDecision.DUPLICATE)

    def test_what_was_skipped_in_part_goes_on_with_the_first_row_that_comes(self) -> None:
        cursor = self.connected(5)
        cursor.on_position(8, 8)
        cursor.skip(6)
        self.assertEqual((cursor.position, cursor.on_rdata(7)), (6, CursorDecision.APPLY))

    def test_with_every_row_only_received_rows_are_duplicates(self) -> None:
        cursor = Cursor(None, every_row=True)
        self.assertIs(cursor.on_position(8, 8), CursorDecision.ADVANCED)
        for token in (7, 8, 9):
            self.assertIs(cursor.on_rdata(token), CursorDecision.APPLY)
            cursor.applied(token)
            self.assertIs(cursor.on_rdata(token), CursorDecision.DUPLICATE)
        self.assertIs(cursor.on_position(9, 12), CursorDecision.ADVANCED)
        self.assertIs(cursor.on_rdata(11), CursorDecision.APPLY)
        cursor.applied(11)
        self.assertEqual((cursor.position, cursor.on_rdata(11)), (12, CursorDecision.DUPLICATE))
        self.assertEqual(cursor.on_position(14, 14), Fetch(Range(12, 14)))
        cursor.caught_up(14)
        self.assertIs(cursor.on_rdata(13), CursorDecision.DUPLICATE)

    def test_begins_at_the_writers_position(self) -> None:
        cursor = Cursor(None)
        self.assertIs(cursor.on_rdata(7), CursorDecision.NOT_CONNECTED)
        self.assertIs(cursor.on_position(3, 8), CursorDecision.ADVANCED)
        self.assertEqual(cursor.position, 8)


class UnorderedTests(TestCase):
    def test_every_row_is_applied_and_the_position_waits_for_the_burst(self) -> None:
        cursor = Cursor(1, unordered=True)
        cursor.on_position(1, 1)
        for token in (7, 6, 5, 5):
            self.assertIs(cursor.on_rdata(token), CursorDecision.APPLY)
            cursor.applied(token)
            self.assertEqual(cursor.position, 1)
        cursor.applied(9)
        self.assertEqual(cursor.position, 7)

    def test_prev_may_be_the_highest_of_a_descending_burst(self) -> None:
        # 1.43, asked again: RDATA backfill master 7 … 2, then POSITION backfill master 7 7
        cursor = Cursor(1, unordered=True)
        cursor.on_position(1, 1)
        for token in (7, 6, 5, 4, 3, 2):
            cursor.applied(token)
        self.assertIs(cursor.on_position(7, 7), CursorDecision.ADVANCED)
        self.assertEqual(cursor.position, 7)

    def test_prev_is_the_lowest_of_a_descending_burst(self) -> None:
        # 1.163: RDATA backfill persister1 7 … 2, then POSITION backfill persister1 2 7
        cursor = Cursor(1, unordered=True)
        cursor.on_position(1, 1)
        for token in (7, 6, 5, 4, 3, 2):
            cursor.applied(token)
        self.assertIs(cursor.on_position(2, 7), CursorDecision.ADVANCED)
        self.assertEqual(cursor.position, 7)

    def test_a_burst_that_broke_off_is_fetched(self) -> None:
        cursor = Cursor(1, unordered=True)
        cursor.on_position(1, 1)
        cursor.applied(7)
        cursor.connection_lost()
        self.assertEqual(cursor.on_position(2, 7), Fetch(Range(1, 7)))

    def test_a_row_before_the_first_position_is_applied_but_proves_nothing(self) -> None:
        cursor = Cursor(1, unordered=True)
        self.assertIs(cursor.on_rdata(9), CursorDecision.APPLY)
        cursor.applied(9)
        self.assertEqual(cursor.on_position(9, 9), Fetch(Range(1, 9)))


class LegacyTests(TestCase):
    def test_rows_that_repeat_a_number_are_one_fact(self) -> None:
        cursor = Cursor(5)
        self.assertEqual(cursor.subscribed(), 5)
        for token, position in ((7, 5), (7, 5), (9, 7), (9, 7)):
            self.assertIs(cursor.on_rdata(token), CursorDecision.APPLY)
            cursor.applied(token)
            self.assertEqual(cursor.position, position)
        self.assertIs(cursor.on_rdata(7), CursorDecision.DUPLICATE)
        self.assertIs(cursor.on_position(None, 12), CursorDecision.ADVANCED)
        self.assertEqual(cursor.position, 12)
        self.assertIs(cursor.on_rdata(12), CursorDecision.DUPLICATE)

    def test_a_run_that_breaks_off_is_resumed_before_its_last_fact(self) -> None:
        cursor = Cursor(5)
        cursor.subscribed()
        for token in (7, 9, 9):
            cursor.applied(token)
        cursor.connection_lost()
        self.assertEqual(cursor.subscribed(), 7)

    def test_now_begins_at_the_answering_position(self) -> None:
        cursor = Cursor(None)
        self.assertIsNone(cursor.subscribed())
        self.assertIs(cursor.on_position(None, 12), CursorDecision.ADVANCED)

    def test_live_rows_that_the_answer_to_now_was_ahead_of(self) -> None:
        cursor = Cursor(None, every_row=True)
        cursor.subscribed()
        cursor.on_position(None, 12)
        self.assertIs(cursor.on_rdata(12), CursorDecision.APPLY)
        cursor.applied(12)
        self.assertIs(cursor.on_rdata(12), CursorDecision.DUPLICATE)

    def test_a_live_row_that_the_answer_had_is_a_duplicate(self) -> None:
        cursor = Cursor(5, every_row=True)
        cursor.subscribed()
        cursor.applied(7)
        cursor.on_position(None, 8)
        self.assertIs(cursor.on_rdata(7), CursorDecision.DUPLICATE)
        self.assertIs(cursor.on_rdata(8), CursorDecision.APPLY)

    def test_a_token_beyond_the_servers_is_a_duplicate(self) -> None:
        kept, lost = Cursor(99), Cursor(99, in_memory=True)
        kept.subscribed()
        lost.subscribed()
        self.assertIs(kept.on_position(None, 12), CursorDecision.DUPLICATE)
        self.assertEqual(kept.position, 99)
        self.assertEqual(lost.on_position(None, 12), Reset(Range(0, 12)))
        self.assertEqual(lost.subscribed(), 0)
        self.assertIs(lost.on_rdata(3), CursorDecision.APPLY)


Line = tuple[str, int, int]  # RDATA (token, row number) or POSITION (prev, new)


class FollowingMachine(RuleBasedStateMachine):
    """A writer's log, a link that may be cut anywhere, and a follower that obeys its cursor."""

    unordered = False

    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []
        self.written = 0  # the writer's position
        self.sent = 0  # the last token on the wire
        self.link: deque[Line] | None = None
        self.landed: list[int] = []
        self.cursor = Cursor(0, unordered=self.unordered)

    def announce(self, *lines: Line) -> None:
        if self.link is not None:
            self.link.extend(lines)

    @rule(steps=st.lists(st.integers(1, 3), min_size=1, max_size=4), lost=st.booleans())
    def write(self, steps: list[int], lost: bool) -> None:
        tokens: list[int] = []
        for step in steps:
            self.written += step
            tokens.append(self.written)
        self.log += tokens
        if lost:  # say, too long for a line: a POSITION takes its place
            self.announce(("POSITION", self.written, self.written))
            self.sent = self.written
            return
        burst = tokens[::-1] if self.unordered else tokens
        self.announce(*(("RDATA", token, 0) for token in burst))
        self.sent = burst[-1]

    @rule(step=st.integers(1, 3))
    def move_without_rows(self, step: int) -> None:
        self.written += step
        self.announce(("POSITION", self.sent, self.written))
        self.sent = self.written

    @precondition(lambda self: self.link is None)
    @rule(early=st.booleans())
    def connect(self, early: bool) -> None:
        self.link = deque()
        if early and self.log:  # a real master sends RDATA to every connection
            self.announce(("RDATA", self.log[-1], 0))
        self.announce(("POSITION", self.sent, self.written))
        self.sent = self.written

    @precondition(lambda self: self.link is not None)
    @rule()
    def repeat(self) -> None:
        assert self.link is not None
        if self.link and self.link[-1][0] == "RDATA":
            self.announce(self.link[-1])

    @precondition(lambda self: self.link is not None)
    @rule()
    def cut(self) -> None:
        self.link = None
        self.cursor.connection_lost()

    @precondition(lambda self: self.link)
    @rule(count=st.integers(1, 5), pages=st.integers(0, 2))
    def deliver(self, count: int, pages: int) -> None:
        """Take some lines; a fetch may break down after ``pages`` pages, and then the link is cut."""
        for _ in range(count):
            if self.link:
                self.take(self.link.popleft(), pages)

    def take(self, line: Line, pages: int | None) -> None:
        command, first, second = line
        if command == "RDATA":
            if self.cursor.on_rdata(first) is CursorDecision.APPLY:
                self.landed.append(first)
                self.cursor.applied(first)
            return
        verdict = self.cursor.on_position(first, second)
        if isinstance(verdict, Fetch) and not self.fetch(verdict.span, pages):
            self.cut()

    def fetch(self, span: Range, pages: int | None) -> bool:
        for page, token in enumerate(token for token in self.log if token in span):
            if page == pages:
                return False
            self.landed.append(token)
            self.cursor.caught_up(token)
        self.cursor.caught_up(span.upto)
        return True

    def teardown(self) -> None:
        if self.link is None:
            self.connect(early=False)
        assert self.link is not None
        while self.link:
            self.take(self.link.popleft(), None)
            if self.link is None:
                self.connect(early=False)
        # A last POSITION, as the answer to anybody's REPLICATE is.
        self.take(("POSITION", self.sent, self.written), None)
        assert self.cursor.position == self.written
        self.compare()

    def compare(self) -> None:
        assert self.landed == self.log


class UnorderedMachine(FollowingMachine):
    """A real server's unordered stream: nothing may be lost, repetition is harmless."""

    unordered = True

    def compare(self) -> None:
        assert set(self.landed) == set(self.log)


class LegacyMachine(RuleBasedStateMachine):
    """A legacy server; the follower holds a replay's rows back until their fact is complete."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[int, int]] = []  # token, row number
        self.written = 0
        self.link: deque[Line] | None = None
        self.cursor = Cursor(0)
        self.held: list[tuple[int, int]] = []
        self.landed: list[tuple[int, int]] = []

    @rule(step=st.integers(1, 3), rows=st.integers(0, 3))
    def write(self, step: int, rows: int) -> None:
        self.written += step
        fact = [(self.written, row) for row in range(rows)]
        self.log += fact
        if self.link is not None and rows:  # live rows use batch: one delivery for the fact
            self.link.append(("LIVE", self.written, rows))

    @precondition(lambda self: self.link is None)
    @rule()
    def connect(self) -> None:
        asked = self.cursor.subscribed()
        assert asked is not None
        self.link = deque(("RDATA", token, row) for token, row in self.log if token > asked)
        self.link.append(("POSITION", self.written, 0))

    @precondition(lambda self: self.link is not None)
    @rule()
    def cut(self) -> None:
        self.link = None
        self.held.clear()
        self.cursor.connection_lost()

    @precondition(lambda self: self.link)
    @rule(count=st.integers(1, 5))
    def deliver(self, count: int) -> None:
        assert self.link is not None
        for _ in range(min(count, len(self.link))):
            self.take(self.link.popleft())

    def take(self, line: Line) -> None:
        command, token, row = line
        if command == "POSITION":
            assert self.cursor.on_position(None, token) in (
                CursorDecision.ADVANCED,
                CursorDecision.DUPLICATE,
            )
        else:
            assert self.cursor.on_rdata(token) is CursorDecision.APPLY
            self.held += [(token, row)] if command == "RDATA" else [(token, n) for n in range(row)]
            self.cursor.applied(token)
        position = self.cursor.position
        assert position is not None
        self.landed += [held for held in self.held if held[0] <= position]
        self.held = [held for held in self.held if held[0] > position]

    def teardown(self) -> None:
        if self.link is None:
            self.connect()
        assert self.link is not None
        while self.link:
            self.take(self.link.popleft())
        assert self.landed == self.log
        assert not self.held


class MixedLegacyTests(TestCase):
    """A legacy server that replays rows in no order."""

    def test_nothing_is_known_before_the_position(self) -> None:
        cursor = Cursor(10, mixed=True)
        self.assertEqual(cursor.subscribed(), 10)
        self.assertFalse(cursor.is_ordered)
        for token in (73, 78, 31, 60, 78):
            self.assertEqual(cursor.on_rdata(token), CursorDecision.APPLY)
            cursor.all_applied([token])
            self.assertEqual(cursor.position, 10)
        self.assertEqual(cursor.on_rdata(10), CursorDecision.DUPLICATE)
        self.assertEqual(cursor.on_position(None, 80), CursorDecision.ADVANCED)
        self.assertEqual((cursor.position, cursor.is_ordered), (80, True))
        self.assertEqual(cursor.on_rdata(79), CursorDecision.DUPLICATE)

    def test_a_connection_lost_in_the_middle_is_resumed(self) -> None:
        cursor = Cursor(10, mixed=True)
        cursor.subscribed()
        cursor.all_applied([73, 31])
        cursor.connection_lost()
        self.assertEqual(cursor.subscribed(), 10)


class FollowingProperties(TestCase):
    def test_everything_exactly_once_in_order(self) -> None:
        run_state_machine_as_test(FollowingMachine, settings=MACHINE)

    def test_unordered_everything_at_least_once(self) -> None:
        run_state_machine_as_test(UnorderedMachine, settings=MACHINE)

    def test_legacy_every_row_exactly_once_and_no_fact_split(self) -> None:
        run_state_machine_as_test(LegacyMachine, settings=MACHINE)

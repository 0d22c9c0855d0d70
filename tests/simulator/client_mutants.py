"""What tells clients too little, too much, too late or in the wrong order is found by simulations of clients.

These take minutes, so `tox -e mutants` runs them and the tests do not; the seeds that are known need ``PYTHONHASHSEED=0``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from typing import Any
from unittest import TestCase
from unittest.mock import patch

from simulator.clients.simulation import simulate_clients
from synrepl.daemon.client_api.position_wait import PositionWait
from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.changes_check import ChangesCheck
from synrepl.services.rooms.news.linear_positions import LinearPositions
from synrepl.services.rooms.news.news_feed import NewsFeed
from synrepl.services.rooms.news.recent_changes import RecentChanges
from synrepl.services.rooms.news.token_wait import TokenWait
from synrepl.services.rooms.news.waiting_syncs import WaitingSyncs
from synrepl.services.rooms.sending.event_sender import EventSender
from synrepl.services.rooms.timelines import room_selection, room_view, update_reader
from synrepl.services.rooms.timelines.history_reader import HistoryReader
from synrepl.storage.rooms.maintenance import purge
from synrepl.storage.rooms.timelines import shown_events, user_rooms
from synrepl.storage.rooms.visibility import pages
from synrepl.storage.rooms.visibility.covered_sql import EVERYTHING
from tests.simulator.mutants import CAUGHT, known_first

#: The most seeds that a defect may need to show, and the steps of each run.
SEEDS, STEPS = 40, 30

Mutation = tuple[Any, str, Any]


class ClientMutantCase(TestCase):
    """Base of tests of one defect each."""

    def assert_caught(self, rules: str, *mutations: Mutation) -> None:
        """Some seed breaks one of these rules with the defects.

        That none does without them is up to :mod:`.test_client_simulation`.

        :param mutations: what is to be replaced: owner, name, defect
        """
        with ExitStack() as defects:
            for owner, name, defect in mutations:
                defects.enter_context(patch.object(owner, name, defect))
            for seed in known_first(self.id(), islice(range(1, SEEDS + 1), SEEDS)):
                violations = simulate_clients(seed, STEPS).violations
                if violations:
                    break
            else:
                self.fail(f"{mutations[0][1]}: not caught within {SEEDS} seeds")
        CAUGHT[self.id()] = seed
        print(f"{self.id()}: caught by seed {seed}: {violations[0][:100]}")
        self.assertIn(violations[0].partition(":")[0], rules.split(), violations[0])


def without(*arguments: Any, **named: Any) -> None:
    """Do nothing."""


async def without_waiting(*arguments: Any, **named: Any) -> None:
    """Do nothing."""


class Tokens(ClientMutantCase):
    """Positions that say too much or too little."""

    def test_the_highest_position_is_taken_for_all(self) -> None:
        def vector(self: AppliedVectors, stream: str) -> PositionVector:
            return PositionVector(linear=max([self.linear(stream), *self.writers(stream).values()]))

        self.assert_caught("CLIENT", (AppliedVectors, "_vector", vector))

    def test_the_next_token_forgets_what_the_client_knew(self) -> None:
        self.assert_caught("CLIENT", (AppliedVectors, "next_token", lambda self, since, upto: upto))

    def test_tokens_are_not_waited_for(self) -> None:
        self.assert_caught("CLIENT", (TokenWait, "until_reached", without_waiting))

    def test_a_worker_takes_any_recorded_position_for_its_own(self) -> None:
        async def recorded(self: Any, streams: Any) -> Any:
            found = await original(self, streams)
            return {stream: (linear, {}) for stream, (linear, _) in found.items()}

        original = LinearPositions._recorded
        self.assert_caught("CLIENT", (LinearPositions, "_recorded", recorded))

    def test_what_a_client_wrote_is_not_waited_for(self) -> None:
        self.assert_caught("CLIENT", (PositionWait, "wait_until_covered", without_waiting))


class News(ClientMutantCase):
    """Changes that are not noticed, or not by those who wait."""

    def test_changes_from_before_a_start_are_taken_for_none(self) -> None:
        self.assert_caught("CLIENT", (RecentChanges, "begin", without))

    def test_changes_of_memberships_are_not_noticed(self) -> None:
        self.assert_caught("CLIENT", (ChangesCheck, "_has_changed", lambda *given: False))

    def test_changes_are_compared_with_the_highest_position(self) -> None:
        def changed_among(
            self: RecentChanges, kind: Any, entities: Collection[str], since: PositionVector
        ) -> frozenset[str] | None:
            return original(self, kind, entities, PositionVector(linear=since.highest))

        original = RecentChanges.changed_among
        self.assert_caught("CLIENT", (RecentChanges, "changed_among", changed_among))

    def test_facts_above_the_position_are_dropped(self) -> None:
        def moved(self: Any, stream: str, writer: str, position: int) -> None:
            waiting = self._waiting.get((stream, writer))
            while waiting:
                fact = waiting.popleft()
                for row in fact.rows if fact.token < position else ():
                    extracts = self._extracts[stream].get(type(row), ())
                    self._pass_on(extracts, writer, fact.token, row)

        self.assert_caught("CLIENT LIVENESS", (NewsFeed, "moved", moved))

    def test_nobody_is_woken(self) -> None:
        self.assert_caught("LIVENESS", (WaitingSyncs, "_wake_later", without))

    def test_a_new_room_of_a_waiting_user_is_not_watched(self) -> None:
        self.assert_caught("LIVENESS", (WaitingSyncs, "_cease", without))

    def test_moved_rooms_are_told_with_gaps(self) -> None:
        self.assert_caught(
            "CLIENT",
            (room_selection, "part_with_whole_history", lambda txn, rooms, upto: upto),
        )


class Timelines(ClientMutantCase):
    """Events that are left out, told twice, or shown to others."""

    def test_what_a_vector_covers_above_its_linear_position_is_left_out(self) -> None:
        def covered_sql(vector: Any, name: str, stream_id: str = "e.stream_id") -> str:
            return f"{stream_id} <= %({name}_linear)s"

        self.assert_caught("CLIENT", (shown_events, "covered_sql", covered_sql))

    def test_what_the_client_knows_above_a_linear_position_is_told_again(self) -> None:
        def not_covered_sql(vector: Any, name: str, stream_id: str = "e.stream_id") -> str:
            return f"{stream_id} > %({name}_linear)s"

        self.assert_caught("CLIENT", (shown_events, "not_covered_sql", not_covered_sql))

    def test_gaps_are_not_marked(self) -> None:
        def newest_shown(*given: Any) -> Mapping[int, shown_events.ShownPart]:
            found = original(*given)
            return {number: part._replace(is_limited=False) for number, part in found.items()}

        original = shown_events.newest_shown
        self.assert_caught("CLIENT", (update_reader, "newest_shown", newest_shown))

    def test_everybody_sees_everything(self) -> None:
        def shown(row: Any) -> Any:
            return original(row)[0], True

        original = shown_events._shown
        self.assert_caught("CLIENT", (shown_events, "_shown", shown))

    def test_a_room_that_is_new_begins_where_the_client_was(self) -> None:
        self.assert_caught("CLIENT", (room_selection, "memberships_at", _all_joined))

    def test_a_page_begins_one_event_too_late(self) -> None:
        def timeline(self: Any, room: Any, part: Any, events: Any) -> Any:
            made = original(self, room, part, events)
            position = made.prev_batch.position
            later = position._replace(stream=position.stream + 1)
            return replace(made, prev_batch=replace(made.prev_batch, position=later))

        original = update_reader.UpdateReader._timeline
        self.assert_caught("CLIENT", (update_reader.UpdateReader, "_timeline", timeline))

    def test_pages_have_what_syncs_will_tell(self) -> None:
        self.assert_caught("CLIENT", (HistoryReader, "_backwards", _without_ceiling))

    def test_pages_do_not_end_where_the_client_was(self) -> None:
        self.assert_caught("CLIENT", (HistoryReader, "_backwards", _without_floor))

    def test_a_user_reads_as_of_what_the_process_knows(self) -> None:
        def room(txn: Any, room_id: str, user: str, *, with_history: bool) -> Any:
            found = original(txn, room_id, user, with_history=with_history)
            old = user_rooms.memberships_at(
                txn, user, [found.member] if found.member else [], PositionVector(linear=1)
            )
            return found._replace(member=old.get(found.room.room_no))

        original = user_rooms.room_of_user
        self.assert_caught("CLIENT", (room_view, "room_of_user", room))

    def test_a_purge_leaves_no_trace(self) -> None:
        self.assert_caught("CLIENT", (purge, "record_purge", lambda *given: 0))

    def test_a_repeated_request_sends_again(self) -> None:
        async def send(self: EventSender, *given: Any, **named: Any) -> Any:
            named["request_id"] = None
            return await original(self, *given, **named)

        original = EventSender.send
        self.assert_caught("ONCE", (EventSender, "send", send))


def _all_joined(txn: Any, user: str, rooms: Any, vector: Any) -> Any:
    return {
        each.room_no: each._replace(membership="join")
        for each in user_rooms.memberships_at(txn, user, rooms, vector).values()
    }


_backwards = HistoryReader._backwards


def _without_ceiling(*given: Any) -> pages.PageRequest:
    return _backwards(*given)._replace(ceiling=EVERYTHING)


def _without_floor(*given: Any) -> pages.PageRequest:
    return _backwards(*given)._replace(floor=None, since=None)

"""What users and servers see: through SQL as through memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synrepl.driver.blocking import BlockingDatabase
from synrepl.rooms import (
    Event,
    Sight,
    StateKey,
    Viewer,
    VisibilityVerdict,
    event_of,
    membership_after,
    redact,
    room_version,
    server_memberships_at,
    visible_to_server,
    visible_to_user,
)
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.numbers import require_room
from synrepl.storage.rooms.visibility.audience import NEAR_BIT
from synrepl.storage.rooms.visibility.event_visibility import seen_by_server, seen_by_user
from synrepl.storage.rooms.visibility.pages import PageOrder, PageRequest, VisiblePage, visible_page
from synrepl.storage.rooms.visibility.viewers import RECENT_VERSIONS
from tests.rooms.vector_files import lines
from tests.storage.postgres import PostgresCase
from tests.storage.rooms.random_written_rooms import SERVERS, USERS, random_rooms
from tests.storage.rooms.written_rooms import WrittenEvent, WrittenRoom

EXAMPLES = int(os.environ.get("SYNREPL_ROOM_EXAMPLES", "60"))


class _Undo(Exception):
    """Ends a transaction without its changes."""


def expected_verdict(
    kept: WrittenEvent, viewer: Viewer, erased: Collection[str]
) -> tuple[VisibilityVerdict, str] | None:
    """What a user sees of an event, in memory, and the user's membership; None if nobody may see it."""
    if kept.audience is None:
        return None
    membership = membership_after(kept.event, kept.before, viewer.user)
    return visible_to_user(kept.audience, viewer, membership, erased), membership


class RoomCase(PostgresCase):
    """Rooms are written, looked at and forgotten."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.database = BlockingDatabase(self.dsn, "rooms")
        self.addCleanup(self.database.close)

    def with_room(
        self,
        room: WrittenRoom,
        check: Callable[[Transaction], object],
        erased: Collection[str] = (),
    ) -> None:
        """Write a room, check it, and undo everything."""

        def work(txn: Transaction) -> None:
            room.write(txn)
            for user in erased:
                txn.execute("INSERT INTO synrepl._erased_users VALUES (%s)", (user,))
            check(txn)
            raise _Undo

        with self.assertRaises(_Undo):
            self.database.run("room", work)

    def assert_users_verdicts(
        self, txn: Transaction, room: WrittenRoom, viewer: Viewer, erased: Collection[str]
    ) -> None:
        ids = [each.event.event_id for each in room.events]
        found = seen_by_user(txn, room.room_id, viewer, ids)
        for kept in room.events:
            seen = found.get(kept.event.event_id)
            actual = None if seen is None else (seen.verdict, seen.membership)
            self.assertEqual(actual, expected_verdict(kept, viewer, erased), kept)

    def assert_pages(
        self,
        txn: Transaction,
        room: WrittenRoom,
        viewer: Viewer,
        erased: Collection[str],
        size: int,
    ) -> None:
        shown = []
        for kept in room.events:
            expected = expected_verdict(kept, viewer, erased)
            if expected is not None and expected[0].sight is not Sight.HIDDEN:
                shown.append((kept, *expected))
        # Few versions of memberships at once, so that pages go beyond them.
        recent = 2 if size % 2 else RECENT_VERSIONS
        with patch("synrepl.storage.rooms.visibility.viewers.RECENT_VERSIONS", recent):
            for order in PageOrder:
                for backwards in (False, True):
                    key = _sort_key(order)
                    ordered = sorted(shown, key=lambda each: key(each[0]), reverse=backwards)
                    found = []
                    for page in _pages(
                        txn, room, viewer, PageRequest(size, None, None, backwards, order)
                    ):
                        found += [
                            (each.event_id, each.verdict, each.membership, each.redacted_by)
                            for each in page.events
                        ]
                    self.assertEqual(
                        found,
                        [
                            (kept.event.event_id, verdict, membership, kept.redacted_by)
                            for kept, verdict, membership in ordered
                        ],
                    )


def _sort_key(order: PageOrder) -> Callable[[WrittenEvent], tuple[int, int]]:
    def key(kept: WrittenEvent) -> tuple[int, int]:
        assert kept.ordering is not None
        by_stream = order is PageOrder.STREAM
        return (0 if by_stream else kept.ordering.topological, kept.ordering.stream)

    return key


def _pages(
    txn: Transaction, room: WrittenRoom, viewer: Viewer, request: PageRequest
) -> Iterable[VisiblePage]:
    """All pages of a room. Only the last is short."""
    while True:
        page = visible_page(txn, room.room_id, viewer, request)
        yield page
        if page.next is None:
            return
        assert len(page.events) == request.limit, "a page before the last is short"
        request = (
            request._replace(upto=page.next)
            if request.backwards
            else request._replace(since=page.next)
        )


viewers = st.builds(
    Viewer,
    st.sampled_from([*USERS, "@stranger:z"]),
    st.booleans(),
    st.frozensets(st.sampled_from(USERS), max_size=2),
)
erased_users = st.frozensets(st.sampled_from(USERS), max_size=2)


class RandomRooms(RoomCase):
    """Every verdict of a random room, and all its pages."""

    timeout = 600

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(random_rooms(), viewers, erased_users, st.sampled_from([2, 3, 9, 40]))
    def test_users_see_what_the_rules_show_in_verdicts_and_pages(
        self, room: WrittenRoom, viewer: Viewer, erased: frozenset[str], size: int
    ) -> None:
        """Pages have every visible event once and in order."""

        def check(txn: Transaction) -> None:
            self.assert_users_verdicts(txn, room, viewer, erased)
            self.assert_pages(txn, room, viewer, erased, size)

        self.with_room(room, check, erased)

    @settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=list(HealthCheck))
    @given(random_rooms(), st.sampled_from(SERVERS), erased_users)
    def test_every_server_verdict_equals_the_pure_one(
        self, room: WrittenRoom, server: str, erased: frozenset[str]
    ) -> None:
        def check(txn: Transaction) -> None:
            numbers = [each.number for each in room.events]
            found = seen_by_server(txn, require_room(txn, room.room_id), server, numbers)
            for kept in room.events:
                expected = None
                if kept.audience is not None:
                    memberships = server_memberships_at(kept.event, kept.before)
                    expected = visible_to_server(kept.audience, server, memberships, erased)
                served = found.get(kept.number)
                self.assertEqual(None if served is None else served.verdict, expected, kept)

        self.with_room(room, check, erased)


class SmallRooms(RoomCase):
    """Rooms of a few events, whose history is for those who are in them."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.room = WrittenRoom()
        self.viewer = Viewer("@a:x", False, frozenset())
        visibility = {"history_visibility": "joined"}
        joined_only = self.room.event("m.room.history_visibility", visibility, key="")
        self.joined_only = self.room.add(joined_only, self.room.add(self.member("join")))

    def member(self, membership: str) -> Event:
        """A membership of the viewer."""
        user = self.viewer.user
        return self.room.event("m.room.member", {"membership": membership}, user, user)

    def message(self) -> Event:
        return self.room.event("m.room.message", {})

    def check_pages(self) -> None:
        """Compare the pages of the viewer, of two sizes."""

        def check(txn: Transaction) -> None:
            for size in (2, 9):
                self.assert_pages(txn, self.room, self.viewer, (), size)

        self.with_room(self.room, check)

    def test_pages_have_what_came_before_a_departure_with_a_higher_ordering(self) -> None:
        self.room.add(self.message(), self.joined_only, topological=40)
        departure = self.room.add(self.member("leave"), self.joined_only, topological=5)
        self.room.add(self.message(), departure)
        self.check_pages()

    def test_pages_have_what_follows_a_second_join_on_a_branch_once(self) -> None:
        self.room.add(self.room.event("m.room.topic", {}, key=""), self.joined_only)
        again = self.room.add(self.member("join"), self.joined_only)
        near = self.room.add(self.message(), again)
        self.assertTrue(near.packed & NEAR_BIT)
        self.check_pages()


class VisibilityVectors(RoomCase):
    """Every case of the vectors."""

    timeout = 600

    def test_rooms_of_the_vectors_are_seen_as_the_reference_shows_them(self) -> None:
        cases = 0
        for row in lines("visibility/random.jsonl.gz"):
            room = _written(row)
            accepted = [each for each in room.events if each.audience is not None]

            def check(
                txn: Transaction,
                row: Mapping[str, Any] = row,
                room: WrittenRoom = room,
                accepted: Sequence[WrittenEvent] = accepted,
            ) -> None:
                for number, case in enumerate(row["client_cases"]):
                    # Short pages take long: each is a statement that is planned.
                    self.check_user(txn, room, accepted, case, 40 if number % 6 else 7)
                for case in row["server_cases"]:
                    self.check_server(txn, room, accepted, case)

            self.with_room(room, check)
            cases += len(row["client_cases"]) + len(row["server_cases"])
        self.assertEqual(cases, 384 + 192)

    def check_user(
        self,
        txn: Transaction,
        room: WrittenRoom,
        accepted: Sequence[WrittenEvent],
        case: Mapping[str, Any],
        size: int,
    ) -> None:
        _erase(txn, case["erased_senders"])
        viewer = Viewer(case["user"], case["is_peeking"], frozenset(case["ignored_users"]))
        ids = [each.event.event_id for each in accepted]
        found = seen_by_user(txn, room.room_id, viewer, ids)
        sights: dict[Sight, list[str]] = {sight: [] for sight in Sight}
        for kept in accepted:
            seen = found[kept.event.event_id]
            if seen.verdict.sight is not Sight.REDACTED or _is_changed(kept.event):
                sights[seen.verdict.sight].append(seen.event_id)
        self.assertEqual(sights[Sight.HIDDEN], case["hidden"])
        self.assertEqual(sights[Sight.REDACTED], case["visible_redacted"])
        request = PageRequest(size, order=PageOrder.STREAM, backwards=False)
        shown = [each for page in _pages(txn, room, viewer, request) for each in page.events]
        hidden = set(case["hidden"])
        self.assertEqual(
            [each.event_id for each in shown], [each for each in ids if each not in hidden]
        )
        memberships = [each.membership for each in shown]
        self.assertEqual(memberships, case["membership_at_visible_events"])

    def check_server(
        self,
        txn: Transaction,
        room: WrittenRoom,
        accepted: Sequence[WrittenEvent],
        case: Mapping[str, Any],
    ) -> None:
        _erase(txn, case["erased_senders"])
        numbers = [each.number for each in accepted]
        found = seen_by_server(txn, require_room(txn, room.room_id), case["server"], numbers)
        redacted = [
            each.event.event_id
            for each in accepted
            if found[each.number].verdict.sight is Sight.REDACTED
        ]
        self.assertEqual(redacted, case["redacted"])


def _written(row: Mapping[str, Any]) -> WrittenRoom:
    """A room of the vectors; each event follows the one before."""
    version = room_version(row["room_version"])
    room = WrittenRoom(row["room_id"], version=version)
    events: dict[str, Event] = {}
    state: dict[StateKey, Event] = {}
    prev: tuple[WrittenEvent, ...] = ()
    for line in row["events"]:
        event = events[line["event_id"]] = event_of(line["event"], version)
        for kind, key in line["state_before_delta"]["del"]:
            del state[kind, key]
        for kind, key, event_id in line["state_before_delta"]["set"]:
            state[kind, key] = events[event_id]
        flags = 4 if line.get("soft_failed") else 0
        if line["verdict"] != "accept":
            flags = 2
        prev = (room.add(event, *prev, before=dict(state), flags=flags),)
    return room


def _erase(txn: Transaction, users: Sequence[str]) -> None:
    txn.execute("DELETE FROM synrepl._erased_users")
    for user in users:
        txn.execute("INSERT INTO synrepl._erased_users VALUES (%s)", (user,))


def _is_changed(event: Event) -> bool:
    """Whether redaction takes anything from an event's content."""
    return bool(redact(event.fields, event.version)["content"] != event.content)

"""The contract of a :class:`~synrepl.services.rooms.news.news.NewsSource`, for each of them."""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet.defer import Deferred

from synrepl.services.rooms.news.news import NO_NEWS, News
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.storage.clients.values import PRIVATE_RECEIPT
from synrepl.streams.row import Row
from synrepl.streams.synapse.account_data import AccountDataRow
from synrepl.streams.synapse.events import AllStateRow, EventRow, StateRow
from synrepl.streams.synapse.presence import PresenceRow
from synrepl.streams.synapse.receipts import ReceiptRow
from synrepl.streams.synapse.to_device import ToDeviceRow
from synrepl.streams.synapse.typing import TypingRow
from tests.services.rooms.news.news_world import WRITERS, NewsWorld, membership, message

A, B, C = "@a:x", "@b:x", "@c:x"
USERS = (A, B, C)
ROOMS = ("!1", "!2", "!3")

_SEEDS = 60


def receipt(room_id: str, user_id: str = A) -> ReceiptRow:
    """A receipt in a room."""
    return ReceiptRow(room_id, "m.read", user_id, "$e", {"ts": 1})


def private_receipt(room_id: str, user_id: str = A) -> ReceiptRow:
    """A receipt that nobody but its user is told of."""
    return ReceiptRow(room_id, PRIVATE_RECEIPT, user_id, "$e", {"ts": 1})


def presence(user_id: str) -> PresenceRow:
    """The presence of a user."""
    return PresenceRow(user_id, "online", 0, 0, 0, None, True)


class NewsSourceContract:
    """Mixed into a test case that makes the world of a source."""

    def make_world(self) -> NewsWorld:
        """A world in which nothing has happened."""
        raise NotImplementedError

    def setUp(self) -> None:
        """Users in rooms, of whom the source has heard."""
        self.world = self.make_world()
        for user, room in ((A, "!1"), (A, "!2"), (B, "!2")):
            self.world.happen("events", membership(user, room))
        for user in USERS:
            self.asked(user)

    def asked(self: Any, user: str) -> SyncToken:
        """A user asks, and knows everything; the token."""
        # The world moves on, so that there is something to ask for.
        before = self.world.now()
        self.world.happen("events", message("!elsewhere"))
        self.world.news(user, before)
        token: SyncToken = self.world.now()
        return token

    def check(self: Any, user: str, since: SyncToken, expected: News) -> None:
        """This is new for a user."""
        self.assertEqual(self.world.news(user, since), expected)

    def test_nothing_is_new_where_nothing_happened(self: Any) -> None:
        since = self.asked(A)
        self.check(A, since, NO_NEWS)
        self.world.loads.clear()
        self.world.happen("events", message("!elsewhere"))
        self.check(A, since, NO_NEWS)
        self.assertEqual(self.world.loads, [])

    def test_an_event_is_new_for_those_in_its_room(self: Any) -> None:
        since = self.asked(A)
        self.world.happen("events", message("!1"))
        self.check(A, since, News(frozenset({"!1"})))
        self.check(B, since, NO_NEWS)
        self.check(A, self.world.now(), NO_NEWS)

    def test_a_change_of_the_state_is_new_without_an_event(self: Any) -> None:
        since = self.asked(A)
        self.world.happen("events", StateRow("!2", "m.room.topic", "", "$t"))
        self.check(B, since, News(frozenset({"!2"})))

    def test_a_membership_is_new_for_its_user_and_the_room_for_the_others(self: Any) -> None:
        since = self.asked(A)
        self.world.happen("events", membership(C, "!2"))
        self.check(A, since, News(frozenset({"!2"})))
        found = self.world.news(C, since)
        self.assertTrue(found.membership or found.rooms is None)
        since = self.asked(C)
        self.world.happen("events", message("!2"))
        self.check(C, since, News(frozenset({"!2"})))

    def test_who_left_is_told_of_that_and_of_no_later_event(self: Any) -> None:
        since = self.asked(B)
        self.world.happen("events", membership(B, "!2", is_joined=False))
        self.assertTrue(self.world.news(B, since).membership)
        since = self.asked(B)
        self.world.happen("events", message("!2"))
        self.check(B, since, NO_NEWS)

    def test_each_kind_of_change_is_told_apart(self: Any) -> None:
        since = self.asked(A)
        for stream, row, expected in (
            ("receipts", receipt("!2"), News(receipts=frozenset({"!2"}))),
            ("receipts", private_receipt("!2"), News(private_receipts=True)),
            ("typing", TypingRow("!1", ()), News(typing=frozenset({"!1"}))),
            ("account_data", AccountDataRow(A, None, "m.direct"), News(account_data=True)),
            ("to_device", ToDeviceRow(A), News(to_device=True)),
            ("presence", presence(B), News(presence=True)),
        ):
            since = self.asked(A)
            self.world.happen(stream, row)
            self.check(A, since, expected)
            self.assertEqual(self.world.news(C, since), NO_NEWS)

    def test_a_vector_may_cover_the_higher_of_two_tokens(self: Any) -> None:
        self.asked(A)
        self.world.commit("events", message("!1"), writer="two")
        self.world.happen("events", message("!2"), writer="one")
        since = self.world.now()
        self.world.settle("events", "two")
        self.world.move("events", "two")
        self.check(A, since, News(frozenset({"!1"})))

    def test_a_membership_of_which_the_process_has_not_heard_is_none_yet(self: Any) -> None:
        """The rooms are read when the membership is committed, and before its fact is applied."""
        since = self.asked(C)
        self.world.commit("events", membership(C, "!2"), writer="two")
        self.world.happen("events", membership(C, "!3"))  # C's rooms are read anew
        self.world.news(C, since)
        since = self.world.now()
        self.world.happen("events", message("!2"))
        found = self.world.news(C, since)
        self.assertTrue(found.membership or "!2" not in (found.rooms or ()))

    def test_rooms_that_are_read_before_a_position_moves_are_right_after_it(self: Any) -> None:
        since = self.asked(B)
        self.world.commit("events", membership(B, "!2", is_joined=False))
        self.world.settle()
        self.world.happen("events", membership(B, "!3"), writer="two")
        self.world.news(B, since)  # reads the rooms
        self.world.move()
        since = self.asked(B)
        self.world.happen("events", message("!2"))
        self.check(B, since, NO_NEWS)
        self.world.happen("events", message("!3"))
        self.check(B, since, News(frozenset({"!3"})))

    def test_a_change_while_rooms_are_read_is_not_missed(self: Any) -> None:
        since = self.world.now()
        self.world.happen("events", membership(C, "!1"))
        self.world.gate = Deferred()
        upto = self.world.now()
        waiting = Deferred.fromCoroutine(self.world.source.news_for(C, since, upto))
        self.world.happen("events", message("!1"))
        gate, self.world.gate = self.world.gate, None
        gate.callback(None)
        self.successResultOf(waiting)
        found = self.world.news(C, upto)
        self.assertTrue(found.rooms is None or "!1" in found.rooms)

    def test_changes_of_whole_states_may_concern_anybody(self: Any) -> None:
        since = self.asked(C)
        self.world.happen("events", AllStateRow("!3"))
        for user in USERS:
            found = self.world.news(user, since)
            self.assertTrue(found.rooms is None or found.membership)

    def test_lost_facts_may_concern_anybody(self: Any) -> None:
        since = self.asked(A)
        self.world.happen("events", message("!elsewhere"))
        self.world.lose("events", "one")
        self.assertIsNone(self.world.news(A, since).rooms)
        since = self.asked(A)
        self.world.happen("receipts", receipt("!3"))
        self.world.lose("receipts", "one")
        self.assertIsNone(self.world.news(A, since).receipts)
        since = self.asked(A)
        self.world.happen("events", message("!1"))
        self.check(A, since, News(frozenset({"!1"})))

    def test_nothing_is_ever_left_out(self: Any) -> None:
        """Random facts of two writers, committed, settled and applied at different times."""
        exact = 0
        for seed in range(_SEEDS):
            rng = Random(seed)
            self.world = self.make_world()
            tokens = {user: [self.world.now()] for user in USERS}
            for _ in range(80):
                steps = self.world.ready()
                if steps and rng.random() < 0.7:
                    rng.choice(steps)()
                else:
                    self.something(rng)
                user = rng.choice(USERS)
                if rng.random() < 0.6:
                    since = rng.choice(tokens[user][-5:])
                    exact += self.compare(seed, user, since)
                    tokens[user].append(self.world.now())
        self.assertGreater(exact, _SEEDS * 2)

    def something(self: Any, rng: Random) -> None:
        """A random fact is committed."""
        room, user = rng.choice(ROOMS), rng.choice(USERS)
        kind = rng.randrange(8)
        if kind < 3:
            self.world.commit("events", message(room), writer=rng.choice(WRITERS))
        elif kind < 5:
            row = membership(user, room, rng.random() < 0.7)
            self.world.commit("events", message(room), row, writer=rng.choice(WRITERS))
        elif kind < 6:
            make = rng.choice((receipt, private_receipt))
            self.world.commit("receipts", make(room, user))
        elif kind < 7:
            self.world.commit("account_data", AccountDataRow(user, None, "m.direct"))
        else:
            self.world.commit("presence", presence(user))

    def compare(self: Any, seed: int, user: str, since: SyncToken) -> bool:
        """What is said is everything, and true of the rooms that are named; whether it is no more than that."""
        where = (seed, user, str(since))
        now = self.world.now()
        found = self.world.news(user, since)
        rooms: set[str] = set()
        has_moved = False
        for stream, fact in self.world.history:
            if fact.token <= since.vectors[stream][fact.writer]:
                continue
            for row in fact.rows:
                self.compare_row(where, found, user, stream, row, now)
                if isinstance(row, EventRow | StateRow):
                    is_in = self.world.was_joined(user, row.room_id, now)
                    rooms |= {row.room_id} if is_in else set()
                if isinstance(row, StateRow):
                    has_moved = has_moved or row.state_key == user
        if has_moved:
            self.assertTrue(found.membership or found.rooms is None, where)
        if found.rooms is None or found.membership:
            return False
        self.assertTrue(rooms <= found.rooms, where)
        for room_id in found.rooms:
            for at in (since, now):
                self.assertTrue(self.world.was_joined(user, room_id, at), (*where, room_id))
        return bool(rooms) and found.rooms == rooms

    def compare_row(
        self: Any, where: object, found: News, user: str, stream: str, row: Row, now: SyncToken
    ) -> None:
        """What is new by a row is not left out."""
        if isinstance(row, ReceiptRow) and row.receipt_type == PRIVATE_RECEIPT:
            self.assertTrue(found.private_receipts or row.user_id != user, where)
        elif isinstance(row, ReceiptRow) and self.world.was_joined(user, row.room_id, now):
            self.assertTrue(found.receipts is None or row.room_id in found.receipts, where)
        elif isinstance(row, AccountDataRow) and row.user_id == user:
            self.assertTrue(found.account_data, where)
        elif isinstance(row, PresenceRow):
            shared = any(
                self.world.was_joined(user, room, now)
                and self.world.was_joined(row.user_id, room, now)
                for room in ROOMS
            )
            self.assertTrue(found.presence or not (shared or row.user_id == user), where)

"""What users' presence becomes, as they sync, do something, or do not."""

from __future__ import annotations

from unittest import TestCase

from synrepl.services.rooms.client_data.presence_states import (
    ACTIVE_S,
    IDLE_S,
    OFFLINE,
    ONLINE,
    REPORT_COUNTS_S,
    UNAVAILABLE,
    WITHOUT_SYNC_S,
    PresenceStates,
)
from synrepl.storage.clients.values import Presence

A, B = "@a:x", "@b:x"


class StatesCase(TestCase):
    """States under a clock of the test's; everything that is to be written is."""

    def setUp(self) -> None:
        self.states = PresenceStates()
        self.now = 1_000_000.0

    def told(self, user_id: str = A) -> tuple[str, bool] | None:
        """State and activity that others have to be told of; None: nothing new."""
        changed = {each.user_id: each for each in self.states.changed(self.now)}
        self.states.written(list(changed.values()))
        found = changed.get(user_id)
        return None if found is None else (found.state, found.currently_active)

    def syncs(self, wanted: str = ONLINE, instance: str = "w1", ago_s: float = 0.0) -> None:
        self.states.syncs(A, instance, wanted, self.now - ago_s, self.now)

    def pass_(self, seconds: float) -> None:
        self.now += seconds


class Syncing(StatesCase):
    """A user who syncs."""

    def test_is_online_and_active_then_inactive_then_idle_then_offline(self) -> None:
        self.syncs()
        self.assertEqual(self.told(), (ONLINE, True))
        self.syncs()
        self.assertIsNone(self.told())
        self.pass_(ACTIVE_S)
        self.syncs()
        self.assertEqual(self.told(), (ONLINE, False))
        self.pass_(IDLE_S - ACTIVE_S)
        self.syncs()
        self.assertEqual(self.told(), (UNAVAILABLE, False))
        self.syncs()
        self.assertIsNone(self.told())
        self.states.ceases(A, "w1")
        self.assertEqual(self.told(), (OFFLINE, False))
        self.assertEqual(len(self.states), 0)

    def test_comes_back_by_doing_something(self) -> None:
        self.syncs()
        self.told()
        self.pass_(IDLE_S)
        self.syncs()
        self.assertEqual(self.told(), (UNAVAILABLE, False))
        self.states.acts(A, self.now)
        self.assertEqual(self.told(), (ONLINE, True))

    def test_is_as_the_sync_asks(self) -> None:
        self.syncs(UNAVAILABLE)
        self.assertEqual(self.told(), (UNAVAILABLE, False))
        self.states.acts(A, self.now)
        self.assertIsNone(self.told())
        self.syncs(ONLINE)
        self.assertEqual(self.told(), (ONLINE, True))
        self.syncs(UNAVAILABLE)
        self.assertEqual(self.told(), (UNAVAILABLE, False))

    def test_stays_as_long_as_any_process_reports_it(self) -> None:
        self.syncs(instance="w1")
        self.syncs(instance="w2")
        self.told()
        self.pass_(WITHOUT_SYNC_S)
        self.states.ceases(A, "w1")
        self.assertIsNone(self.told())
        self.states.ceases(A, "w2")
        self.assertEqual(self.told(), (OFFLINE, False))

    def test_is_offline_when_the_process_that_reported_it_is_gone(self) -> None:
        self.syncs()
        self.told()
        self.pass_(REPORT_COUNTS_S - 1)
        self.told()
        self.assertEqual(self.states.statuses(), {A: ONLINE})
        self.pass_(1)
        self.assertEqual(self.told(), (OFFLINE, False))


class Setting(StatesCase):
    """A user who sets a state."""

    def test_counts_until_the_time_without_sync_is_over(self) -> None:
        for state in (ONLINE, UNAVAILABLE):
            self.states.set(A, state, "here", self.now)
            (found,) = self.states.changed(self.now)
            self.assertEqual(found[:3], (A, state, "here"))
            self.states.written([found])
            self.pass_(WITHOUT_SYNC_S - 1)
            self.assertIsNone(self.told())
            self.pass_(1)
            self.assertEqual(self.told(), (OFFLINE, False))

    def test_is_not_overridden_by_the_next_report(self) -> None:
        self.syncs()
        self.told()
        self.states.set(A, UNAVAILABLE, None, self.now)
        self.assertEqual(self.told(), (UNAVAILABLE, False))
        self.syncs()
        self.assertIsNone(self.told())

    def test_is_not_overridden_by_what_the_user_did_before(self) -> None:
        self.syncs()
        self.told()
        self.pass_(10)
        self.states.set(A, UNAVAILABLE, None, self.now)
        self.assertEqual(self.told(), (UNAVAILABLE, False))
        self.pass_(2)
        self.states.acts(A, self.now - 3)
        self.assertIsNone(self.told())
        self.states.acts(A, self.now - 1)
        self.assertEqual(self.told(), (ONLINE, True))

    def test_is_not_overridden_by_a_sync_that_began_before(self) -> None:
        self.syncs(UNAVAILABLE)
        self.told()
        for state in (OFFLINE, ONLINE):
            self.states.set(A, state, "set", self.now)
            told = self.told()
            assert told is not None
            self.assertEqual(told[0], state)
            self.pass_(2)
            self.syncs(UNAVAILABLE if state == ONLINE else ONLINE, ago_s=3)
            self.assertIsNone(self.told())
        self.states.set(A, OFFLINE, "set", self.now)
        self.told()
        self.pass_(2)
        self.syncs(ONLINE, ago_s=1)
        self.assertEqual(self.told(), (ONLINE, True))

    def test_a_new_message_alone_is_told(self) -> None:
        self.states.set(A, ONLINE, "one", self.now)
        self.told()
        self.states.set(A, ONLINE, "two", self.now)
        self.assertEqual(self.told(), (ONLINE, True))
        self.states.set(A, ONLINE, "two", self.now)
        self.assertIsNone(self.told())

    def test_a_message_of_one_who_is_offline_is_told_once(self) -> None:
        self.states.set(A, OFFLINE, "away", self.now)
        self.assertEqual(self.told(), (OFFLINE, False))
        self.assertEqual(self.states.unknown([A]), [])
        self.assertEqual(self.states.statuses(), {})
        self.pass_(WITHOUT_SYNC_S)
        self.assertIsNone(self.told())
        self.assertEqual(self.states.unknown([A]), [A])


class Restarting(StatesCase):
    """A process that takes over what is stored."""

    def test_users_have_time_to_be_reported_again(self) -> None:
        stored = [
            Presence(A, ONLINE, None, int((self.now - IDLE_S + 1) * 1000), False),
            Presence(B, UNAVAILABLE, None, 0, False),
        ]
        self.states.load(stored, self.now)
        self.assertEqual(self.states.unknown([A, B, "@c:x"]), ["@c:x"])
        self.assertIsNone(self.told())
        self.pass_(REPORT_COUNTS_S - 1)
        self.syncs()
        self.pass_(1)
        self.assertEqual(self.told(B), (OFFLINE, False))
        self.assertEqual(self.states.statuses(), {A: UNAVAILABLE})

    def test_what_is_stored_of_a_user_who_is_offline_is_not_told_again(self) -> None:
        self.states.load([Presence(A, OFFLINE, "gone", 5, False)], self.now)
        self.assertIsNone(self.told())
        self.states.load([Presence(A, OFFLINE, "gone", 5, False)], self.now)
        self.syncs()
        (found,) = self.states.changed(self.now)
        self.assertEqual((found.state, found.status_msg), (ONLINE, "gone"))

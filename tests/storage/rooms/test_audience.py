"""Audiences in one integer, and the rules of visibility as SQL."""

from __future__ import annotations

from itertools import product
from unittest import TestCase

from synrepl.rooms import (
    Event,
    EventAudience,
    HistoryVisibility,
    Viewer,
    VisibilityReason,
    visible_to_user,
)
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.visibility.audience import (
    EXCEPTION_BIT,
    HIDDEN,
    JOIN,
    MEMBERSHIPS,
    NEVER_BITS,
    OTHER,
    OTHER_MEMBERSHIP,
    membership_set,
    membership_text,
    pack_audience,
    pack_unseen,
    unpack_audience,
    visibility_set,
)
from synrepl.storage.rooms.visibility.audience_sql import REASONS, SIGHTS, ViewerSql
from tests.storage.postgres import PostgresCase
from tests.storage.rooms.written_rooms import WrittenRoom

USER, SENDER = "@u:x", "@s:x"

ROOM = WrittenRoom()
MESSAGE = ROOM.event("m.room.message", {}, SENDER)
TOPIC = ROOM.event("m.room.topic", {}, SENDER, "")
MEMBERS = {
    each: ROOM.event("m.room.member", {"membership": each}, SENDER, USER)
    for each in (*MEMBERSHIPS, "of no room version")
}


def audiences() -> list[tuple[Event, EventAudience]]:
    """Every audience, of an event that has it."""
    found = []
    for visibility, widest, hidden in product(HistoryVisibility, HistoryVisibility, HIDDEN):
        for event in (MESSAGE, TOPIC):
            is_state = event is TOPIC
            args = (event.event_id, SENDER, visibility, widest, is_state, None, "leave", hidden)
            found.append((event, EventAudience(*args)))
        for before, event in product(MEMBERSHIPS, MEMBERS.values()):
            args = (event.event_id, SENDER, visibility, widest, True, USER, before, hidden)
            found.append((event, EventAudience(*args)))
    return found


class PackedAudiences(TestCase):
    def test_unpacks_to_the_same_audience(self) -> None:
        for event, audience in audiences():
            packed = pack_audience(event, audience)
            self.assertLess(packed, 1 << 31)
            unpacked = unpack_audience(packed, event.event_id, SENDER, event.state_key)
            self.assertEqual(unpacked, audience)

    def test_has_the_membership_that_the_event_sets(self) -> None:
        for membership, event in MEMBERS.items():
            expected = membership if membership in MEMBERSHIPS else OTHER
            self.assertEqual(membership_text(membership_set(pack_unseen(event))), expected)

    def test_a_membership_of_no_room_version_is_no_leave(self) -> None:
        packed = pack_unseen(MEMBERS["of no room version"])
        self.assertEqual(membership_set(packed), OTHER_MEMBERSHIP)

    def test_nobody_sees_an_outlier_but_it_has_the_value_that_it_sets(self) -> None:
        event = ROOM.event(
            "m.room.history_visibility", {"history_visibility": "invited"}, SENDER, ""
        )
        packed = pack_unseen(event)
        self.assertIsNone(unpack_audience(packed, event.event_id, SENDER, ""))
        self.assertIs(visibility_set(packed), HistoryVisibility.INVITED)


class VisibilityRulesAsSql(PostgresCase):
    """The two forms of the rules, for every combination of what they look at."""

    async def test_every_verdict_equals_the_pure_one(self) -> None:
        process = self.process("rules")
        checked = await process.database.run("rules", self.check)
        self.assertEqual(checked, 16 * 4 * (2 * 1 + 5 * 6 * 2) * 2 * 2 * 2 * 5)

    def check(self, txn: Transaction) -> int:
        sql = ViewerSql("c.audience", "c.membership", "c.own", "c.ignored", "c.erased", "c.peeking")
        cases, expected = [], []
        flags = [False, True]
        for event, audience in audiences():
            packed = pack_audience(event, audience)
            owns = flags if audience.target is not None else [False]
            for own, ignored, erased, peeking in product(owns, flags, flags, flags):
                user = USER if own else "@other:x"
                for number, membership in enumerate(MEMBERSHIPS):
                    viewer = Viewer(user, peeking, {SENDER} if ignored else set())
                    verdict = visible_to_user(
                        audience, viewer, membership, {SENDER} if erased else ()
                    )
                    cases.append((packed, number, own, ignored, erased, peeking))
                    expected.append(verdict)
        txn.execute(
            "CREATE TEMPORARY TABLE cases (nth serial, audience int, membership int, own boolean,"
            " ignored boolean, erased boolean, peeking boolean)"
        )
        txn.copy_in(
            "COPY cases (audience, membership, own, ignored, erased, peeking) FROM STDIN",
            ("\t".join(str(cell) for cell in case) + "\n" for case in cases),
        )
        txn.execute(
            f"SELECT {sql.reason()}, {sql.sight(sql.reason())}, {sql.shows()}, {sql.shows_ordinary()}"
            " FROM cases c ORDER BY nth"
        )
        for case, verdict in zip(cases, expected, strict=True):
            reason, sight, shows, shows_ordinary = txn.fetchone()
            found = REASONS[reason], SIGHTS[sight], shows
            is_own = case[2]
            if not case[0] & (NEVER_BITS | EXCEPTION_BIT) and (not is_own or case[1] == JOIN):
                self.assertEqual(shows_ordinary, shows, case)
            if found != (verdict.reason, verdict.sight, verdict.reason.shows):
                self.fail(f"{case}: {found} instead of {verdict}")
        self.assertIn(VisibilityReason.INVITATION_ENDED, {each.reason for each in expected})
        return len(cases)

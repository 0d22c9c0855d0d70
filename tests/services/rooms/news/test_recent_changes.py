"""What has changed lately, against a list of everything that changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.news.recent_changes import ChangeKind, RecentChanges

ROOMS = ("!a", "!b", "!c", "!d")
WRITERS = ("one", "two")

#: Writer, room (None: all of them), in the order in which they happen; the place is the token.
_changes = st.lists(
    st.tuples(st.sampled_from(WRITERS), st.sampled_from([*ROOMS, *ROOMS, None])), max_size=30
)
_vectors = st.builds(
    PositionVector,
    st.dictionaries(st.sampled_from(WRITERS), st.integers(0, 35), max_size=2),
    st.integers(0, 30),
)


class Changes(SynchronousTestCase):
    """Several writers, whose tokens a vector may cover in part."""

    @given(_changes, _vectors, st.integers(1, 6), st.sets(st.sampled_from(ROOMS)))
    def test_what_changed_is_never_said_not_to_have(
        self,
        changes: list[tuple[str, str | None]],
        since: PositionVector,
        entities: int,
        asked: set[str],
    ) -> None:
        recent = RecentChanges(entities)
        for writer in WRITERS:
            recent.begin("events", writer, 0)
        changed: set[str] = set()
        for token, (writer, room) in enumerate(changes, 1):
            recent.changed(ChangeKind.ROOM, writer, token, room)
            if token > since[writer]:
                changed |= set(ROOMS) if room is None else {room}
        for room in ROOMS:
            if room in changed:
                self.assertTrue(recent.may_have_changed(ChangeKind.ROOM, room, since))
        self.assertLessEqual(bool(changed), recent.any_since(ChangeKind.ROOM, since))
        found = recent.changed_among(ChangeKind.ROOM, asked, since)
        if found is not None:
            self.assertEqual(found, asked & changed)

    def test_it_is_exact_while_it_has_room(self) -> None:
        recent = RecentChanges()
        for writer in WRITERS:
            recent.begin("events", writer, 5)
        recent.changed(ChangeKind.ROOM, "one", 7, "!a")
        recent.changed(ChangeKind.ROOM, "two", 6, "!b")
        self.assertIsNone(recent.changed_among(ChangeKind.ROOM, ROOMS, PositionVector(linear=4)))
        behind = PositionVector({"one": 7}, 5)
        self.assertEqual(recent.changed_among(ChangeKind.ROOM, ROOMS, behind), {"!b"})
        self.assertFalse(recent.may_have_changed(ChangeKind.ROOM, "!a", behind))
        self.assertFalse(recent.any_since(ChangeKind.ROOM, PositionVector(linear=7)))
        self.assertFalse(recent.any_since(ChangeKind.RECEIPTS, PositionVector()))

"""Room versions: which differ in what."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields
from unittest import TestCase

from synrepl.rooms.versions import ROOM_VERSIONS, RoomVersion, UnknownRoomVersion, room_version

#: The first version of each difference, and the last where it ends.
SINCE = {
    "redactions_are_authorised": ("1", "2"),
    "aliases_are_authorised": ("1", "5"),
    "enforces_key_validity": ("5", "12"),
    "strict_json": ("6", "12"),
    "notification_levels": ("6", "12"),
    "knocking": ("7", "12"),
    "restricted_joins": ("8", "12"),
    "keeps_allow": ("8", "12"),
    "keeps_authorising_user": ("9", "12"),
    "integer_levels": ("10", "12"),
    "knock_restricted_joins": ("10", "12"),
    "creator_is_sender": ("11", "12"),
    "redacts_in_content": ("11", "12"),
    "updated_redaction_rules": ("11", "12"),
    "room_id_is_create_hash": ("12", "12"),
    "creators_have_infinite_power": ("12", "12"),
}


class RoomVersions(TestCase):
    """The table, read in the other direction."""

    def test_each_property_changes_in_its_version(self) -> None:
        listed = {each.name for each in fields(RoomVersion)} - {"name", "event_ids", "resolution"}
        self.assertEqual(listed, SINCE.keys())
        for difference, (first, last) in SINCE.items():
            for name, version in ROOM_VERSIONS.items():
                wanted = int(first) <= int(name) <= int(last)
                self.assertIs(getattr(version, difference), wanted, (difference, name))

    def test_event_id_format_and_resolution_by_version(self) -> None:
        got = [(each.event_ids.value, each.resolution.value) for each in ROOM_VERSIONS.values()]
        safe = [("URL-safe hash", "2")] * 8
        self.assertEqual(
            got, [("given", "1"), ("given", "2"), ("hash", "2"), *safe, ("URL-safe hash", "2.1")]
        )

    def test_an_unknown_name_is_refused(self) -> None:
        self.assertEqual([*ROOM_VERSIONS], [str(number) for number in range(1, 13)])
        for name, version in ROOM_VERSIONS.items():
            self.assertIs(room_version(name), version)
            self.assertEqual(version.name, name)
        for unknown in ("13", "", "org.example", 1, None, ["1"], "x" * 10**5):
            with self.subTest(str(unknown)[:9]), self.assertRaises(UnknownRoomVersion) as caught:
                room_version(unknown)
            self.assertLess(len(str(caught.exception)), 200)

    def test_a_copy_is_the_same_object(self) -> None:
        """They are compared as objects."""
        for version in ROOM_VERSIONS.values():
            self.assertIs(pickle.loads(pickle.dumps(version)), version)
            self.assertIs(copy.deepcopy(version), version)
            self.assertIs(copy.copy(version), version)

"""What redaction leaves of an event."""

from __future__ import annotations

from typing import Any
from unittest import TestCase

from synrepl.rooms.redacting import redact, signed_part
from synrepl.rooms.versions import (
    ROOM_VERSIONS,
    V1,
    V5,
    V6,
    V7,
    V8,
    V9,
    V10,
    V11,
    V12,
    EventIds,
    RoomVersion,
    room_version,
)
from tests.rooms.vector_files import lines


class RedactionVectors(TestCase):
    """The rows of ``redaction`` that show a form."""

    def test_redacts_the_published_vectors(self) -> None:
        for name in ("published_synapse", "published"):
            for row in lines(f"redaction/{name}.jsonl"):
                with self.subTest(row["id"]):
                    version = room_version(row["room_version"])
                    left_out = {"unsigned", "signatures", "hashes"}
                    if version.event_ids is not EventIds.GIVEN:
                        left_out.add("event_id")
                    made = redact(row["event"], version)
                    for key in left_out:
                        made.pop(key, None)
                        row["redacted"].pop(key, None)
                    self.assertEqual(made, row["redacted"])


class RedactionRules(TestCase):
    """Which versions keep what: the last before a change and the first after it."""

    def keeps(self, version: RoomVersion, kind: str, content: dict[str, Any]) -> Any:
        return redact({"type": kind, "content": content}, version)["content"]

    def changes(
        self, kind: str, content: Any, last: RoomVersion, first: RoomVersion, kept: Any
    ) -> None:
        """Content that is dropped, or kept, and from some version on not, or so."""
        self.assertEqual(self.keeps(first, kind, content), kept, (kind, first.name))
        self.assertNotEqual(self.keeps(last, kind, content), kept, (kind, last.name))

    def test_kept_content_changes_between_versions(self) -> None:
        self.changes("m.room.aliases", {"aliases": ["#a:b"]}, V5, V6, {})
        self.changes("m.room.join_rules", {"allow": []}, V7, V8, {"allow": []})
        voucher = {"join_authorised_via_users_server": "@a:b"}
        self.changes("m.room.member", voucher, V8, V9, voucher)
        self.changes("m.room.power_levels", {"invite": 1}, V10, V11, {"invite": 1})
        self.changes("m.room.create", {"x": 1}, V10, V11, {"x": 1})
        self.changes("m.room.redaction", {"redacts": "$x"}, V10, V11, {"redacts": "$x"})
        invite = {"third_party_invite": {"signed": {"a": 1}, "display_name": "x"}}
        self.changes(
            "m.room.member", invite, V10, V11, {"third_party_invite": {"signed": {"a": 1}}}
        )

    def test_kept_fields_change_between_versions(self) -> None:
        fields = {
            "type": "x",
            "origin": "b",
            "membership": "join",
            "prev_state": [],
            "content": {},
            "x": 1,
        }
        self.assertEqual(redact(fields, V10), {k: fields[k] for k in fields if k != "x"})
        self.assertEqual(redact(fields, V11), {"type": "x", "content": {}})

    def test_accepts_content_of_any_type(self) -> None:
        for version in ROOM_VERSIONS.values():
            for kind in (
                "m.room.member",
                "m.room.create",
                "m.room.power_levels",
                "x",
                None,
                [],
                {"a": 1},
            ):
                for content in (None, "x", 1, [], ["membership"]):
                    made = redact({"type": kind, "content": content}, version)
                    self.assertEqual(made, {"type": kind, "content": {}})
            self.assertEqual(redact({}, version), {"content": {}})
            for invite in (None, "signed", ["signed"]):
                content = {"membership": "invite", "third_party_invite": invite}
                self.assertEqual(
                    self.keeps(version, "m.room.member", content), {"membership": "invite"}
                )

    def test_keeps_an_unsigned_third_party_invite_as_an_empty_object(self) -> None:
        """What is no object goes; of an object an empty one stays, as by the reference."""
        for invite in ({}, {"display_name": "x"}):
            content = {"membership": "invite", "third_party_invite": invite}
            left = {"membership": "invite", "third_party_invite": {}}
            self.changes("m.room.member", content, V10, V11, left)

    def test_signatures_are_kept_but_not_signed(self) -> None:
        fields = {"type": "x", "signatures": {"b": {}}, "unsigned": {}, "hashes": {}}
        for version in (V1, V12):
            signed = {"type": "x", "content": {}, "hashes": {}}
            self.assertEqual(signed_part(fields, version), signed)
            self.assertEqual(redact(fields, version), {**signed, "signatures": {"b": {}}})

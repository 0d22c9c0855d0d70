"""Events in client format."""

from __future__ import annotations

import json
from typing import Any
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from synrepl.rooms import (
    ClientUnsigned,
    Event,
    client_form,
    content_json,
    event_of,
    field_path,
    room_version,
    selected_fields,
    stripped_event,
)

FEDERATION = (
    *("auth_events", "prev_events", "depth", "hashes", "signatures", "origin", "room_id"),
    "unsigned",
)


def made(version: str, kind: str = "m.room.message", **more: Any) -> Event:
    """An event with all fields of the federation format."""
    fields = {
        "type": kind,
        "sender": "@a:x",
        "room_id": "!room:x",
        "content": {},
        "depth": 3,
        "origin": "x",
        "origin_server_ts": 17,
        "prev_events": [],
        "auth_events": [],
        "hashes": {"sha256": "x"},
        "signatures": {"x": {"ed25519:1": "y"}},
        "unsigned": {"age": 5, "transaction_id": "of another user"},
        **({"event_id": "$given:x"} if version in "12" else {}),
        **more,
    }
    return event_of(fields, room_version(version))


class ClientFormats(TestCase):
    """One event of each kind."""

    def of(self, event: Event) -> dict[str, Any]:
        """Its client format, decoded."""
        form = client_form(event.raw, event.event_id, event.version)
        found: dict[str, Any] = json.loads(form.json)
        self.assertEqual(found["event_id"], event.event_id)
        self.assertEqual((form.type, form.sender), (event.type, event.sender))
        self.assertEqual(form.state_key, event.state_key)
        return found

    def test_has_nothing_that_only_servers_need(self) -> None:
        for version in ("1", "3", "10", "12"):
            found = self.of(made(version, content={"body": "hi"}))
            self.assertEqual([each for each in FEDERATION if each in found], [])
            self.assertEqual(found["content"], {"body": "hi"})
            self.assertEqual(found["origin_server_ts"], 17)
            self.assertNotIn("state_key", found)
            self.assertNotIn("redacts", found)

    def test_a_state_event_has_its_key_also_if_it_is_empty(self) -> None:
        self.assertEqual(self.of(made("10", "m.room.topic", state_key=""))["state_key"], "")

    def test_content_is_the_same_byte_for_byte(self) -> None:
        raw = made("5").raw.replace(
            b'"content":{}', b'"content":{"n": 1.50e2,"n":123456789012345678901}'
        )
        self.assertEqual(content_json(raw), b'{"n": 1.50e2,"n":123456789012345678901}')
        form = client_form(raw, "$x", room_version("5"))
        self.assertIn(b'"content":{"n": 1.50e2,"n":123456789012345678901}', form.json)

    def test_a_redaction_names_its_target_in_both_places_in_every_version(self) -> None:
        for version in ("1", "10"):
            found = self.of(
                made(version, "m.room.redaction", redacts="$t", content={"reason": "r"})
            )
            self.assertEqual(
                (found["redacts"], found["content"]), ("$t", {"reason": "r", "redacts": "$t"})
            )
        found = self.of(made("11", "m.room.redaction", content={"redacts": "$t"}))
        self.assertEqual((found["redacts"], found["content"]), ("$t", {"redacts": "$t"}))
        # The field beside the content means nothing there.
        found = self.of(made("11", "m.room.redaction", redacts="$other"))
        self.assertNotIn("redacts", found)

    def test_unsigned_is_what_this_server_adds(self) -> None:
        event = made("10").raw, "$x", room_version("10")
        unsigned = ClientUnsigned(age=3, membership="join", prev_content=Raw(b'{"a":1}'))
        found = json.loads(client_form(*event, unsigned, "!r:x").json)
        expected = {"age": 3, "membership": "join", "prev_content": {"a": 1}}
        self.assertEqual((found["unsigned"], found["room_id"]), (expected, "!r:x"))
        plain = client_form(*event)
        self.assertEqual(client_form(*event, ClientUnsigned()), plain)
        self.assertFalse(json.loads(plain.json).keys() & {"unsigned", "room_id"})

    def test_the_stripped_form_has_four_fields(self) -> None:
        event = made("10", "m.room.name", state_key="", content={"name": "n"})
        expected = {
            "type": "m.room.name",
            "state_key": "",
            "sender": "@a:x",
            "content": {"name": "n"},
        }
        self.assertEqual(json.loads(stripped_event(event.raw)), expected)


def _selected(event: object, *paths: str) -> Any:
    found = selected_fields(json.dumps(event).encode(), [field_path(each) for each in paths])
    return json.loads(found)


EVENT: Any = {"type": "t", "content": {"body": "b", "a.b": {"c": 1}, "list": [1]}}


class SelectedFields(TestCase):
    """``event_fields`` of filters."""

    def test_has_the_fields_and_the_objects_around_them(self) -> None:
        self.assertEqual(_selected(EVENT, "type"), {"type": "t"})
        self.assertEqual(
            _selected(EVENT, "content.body", "type"), {"content": {"body": "b"}, "type": "t"}
        )
        self.assertEqual(_selected(EVENT, r"content.a\.b.c"), {"content": {"a.b": {"c": 1}}})

    def test_the_order_of_overlapping_paths_does_not_matter(self) -> None:
        whole = {"content": EVENT["content"]}
        self.assertEqual(_selected(EVENT, "content", "content.body"), whole)
        self.assertEqual(_selected(EVENT, "content.body", "content"), whole)

    def test_fields_that_are_not_there_are_left_out(self) -> None:
        self.assertEqual(_selected(EVENT, "content.body.x", "content.list.x", "y.z", ""), {})

    def test_a_backslash_escapes_dots_and_backslashes_only(self) -> None:
        self.assertEqual(field_path(r"a\.b.c\\.d\e"), ("a.b", "c\\", "d\\e"))
        self.assertEqual(field_path("a\\"), ("a\\",))

    @given(
        st.recursive(st.integers(), lambda inner: st.dictionaries(st.text(), inner)),
        st.lists(st.text()),
    )
    def test_what_is_selected_is_a_part_of_the_event(self, event: Any, paths: list[str]) -> None:
        found = _selected(event, *paths)
        self.assertTrue(_is_part(found, event) or found == {}, found)


def _is_part(part: Any, whole: Any) -> bool:
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and _is_part(each, whole[key]) for key, each in part.items())
    return bool(part == whole)

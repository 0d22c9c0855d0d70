"""Events: hashes, IDs, limits, and that nothing but the named error is ever raised."""

from __future__ import annotations

import json
import pickle
from contextlib import suppress
from typing import Any
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st
from signedjson.key import decode_signing_key_base64
from unpaddedbase64 import encode_base64

from synrepl.rooms.event import BadEvent, Event, event_of, parse_event
from synrepl.rooms.hashes import content_hash, event_id_of, reference_hash, signed_bytes
from synrepl.rooms.identifiers import BadIdentifier
from synrepl.rooms.receipt import ReceiptVerdict, check_on_receipt, content_hash_matches
from synrepl.rooms.redacting import redact
from synrepl.rooms.signatures import (
    check_json_signature,
    keys_of,
    server_key,
    sign_event,
    signing_servers,
)
from synrepl.rooms.versions import (
    ROOM_VERSIONS,
    V1,
    V4,
    V10,
    V12,
    EventIds,
    RoomVersion,
    room_version,
)
from tests.rooms.vector_files import lines

FIELDS: dict[str, Any] = {
    "type": "m.room.message",
    "sender": "@a:b",
    "room_id": "!a:b",
    "content": {"body": "x"},
    "depth": 1,
    "origin_server_ts": 1,
    "prev_events": ["$" + "a" * 43],
    "auth_events": [],
}


KEY = decode_signing_key_base64("ed25519", "1", "YJDBA9Xnr2sVqXD9Vj7XVUnmFZcZrlw8Md7kMW+3XA1")
KEYS = keys_of({"b": {"ed25519:1": "XGX0JRS2Af3be3knz2fBiRbApjm2Dh61gXDJA8kcJNI"}})


class EventVectors(TestCase):
    """The rows of ``events``."""

    def test_hashes_and_event_ids_equal_those_of_the_vectors(self) -> None:
        for row in lines("events/random_hash_sign_redact.jsonl.gz"):
            with self.subTest(row["id"]):
                version = room_version(row["room_version"])
                fields = row["input"]
                hashed = encode_base64(content_hash(fields))
                self.assertEqual(hashed, row["content_hash_sha256"])
                complete = {**fields, "hashes": {"sha256": hashed}}
                self.assertEqual(
                    encode_base64(reference_hash(complete, version)), row["reference_hash_sha256"]
                )
                event = event_of(complete, version)
                self.assertEqual(event.event_id, row["event_id"])
                self.assertEqual(encode_base64(event.content_hash()), hashed)
                self.assertTrue(content_hash_matches(event))

    def test_recorded_events_are_accepted(self) -> None:
        for row in lines("events/published_real_pdus.jsonl"):
            with self.subTest(row["id"]):
                version = room_version(row["room_version"])
                event = event_of(row["event"], version)
                self.assertEqual(event.event_id, row["event_id"])
                reference = encode_base64(reference_hash(row["event"], version))
                self.assertEqual(reference, row["reference_hash_sha256"])
                self.assertEqual(content_hash_matches(event), row["content_hash_ok"])
                if "verify_keys" in row:
                    keys = {
                        key_id: server_key(key_id, key)
                        for key_id, key in row["verify_keys"].items()
                    }
                    signed = {
                        **redact(row["event"], version),
                        "unsigned": row["event"].get("unsigned", {}),
                    }
                    refusal = check_json_signature(signed, row["server_name"], keys)
                    self.assertEqual(refusal is None, row["signature_ok"], refusal)

    def test_tampered_events_get_the_verdict_of_the_vectors(self) -> None:
        for row in lines("events/tampered.jsonl.gz"):
            with self.subTest(row["id"], kind=row["kind"]):
                version = room_version(row["room_version"])
                raw = json.dumps(row["event"]).encode()
                got = check_on_receipt(raw, version, keys_of(row["verify_keys"]))
                self.assertEqual(got.verdict, row["outcome"], got.refusal)
                right = (
                    encode_base64(content_hash(row["event"])) == row["event"]["hashes"]["sha256"]
                )
                self.assertEqual(right, row["content_hash_ok"])
                if got.verdict is ReceiptVerdict.DROP:
                    self.assertIsNone(got.event)
                    self.assertIsNotNone(got.refusal)
                    continue
                assert got.event is not None
                self.assertEqual(got.event.event_id, row["event_id"])
                if got.verdict is ReceiptVerdict.ACCEPT:
                    self.assertEqual(got.event.raw, raw)
                else:
                    self.assertEqual(got.event.fields, redact(row["event"], version))


class ReceiptChecks(TestCase):
    """The checks of an event by itself, one at a time."""

    def code(self, version: RoomVersion = V10, **fields: Any) -> str | None:
        signed = sign_event({**FIELDS, **fields}, version, "b", KEY)
        refusal = check_on_receipt(json.dumps(signed).encode(), version, KEYS).refusal
        return refusal.code if refusal else None

    def test_drops_malformed_identifiers(self) -> None:
        self.assertIsNone(self.code())
        for sender in ("a:b", "@a", "@a\0:b", "@a:b c"):
            self.assertEqual(self.code(sender=sender), "no-event", sender)
        self.assertEqual(self.code(room_id="a:b"), "no-event")
        self.assertEqual(self.code(V12), "no-event")
        self.assertIsNone(self.code(V12, room_id="!" + "a" * 43))
        self.assertIsNone(self.code(V1, event_id="$a:b", prev_events=[]))
        self.assertEqual(self.code(V1, event_id="a:b", prev_events=[]), "no-event")

    def test_redacts_an_event_with_a_wrong_content_hash(self) -> None:
        for hashes in (
            None,
            [],
            {},
            {"sha256": 1},
            {"sha256": "ä"},
            {"sha256": "x"},
            {"sha256": ""},
        ):
            signed = {**sign_event(FIELDS, V10, "b", KEY), "hashes": hashes}
            signature = encode_base64(KEY.sign(signed_bytes(signed, V10)).signature)
            signed["signatures"] = {"b": {"ed25519:1": signature}}
            got = check_on_receipt(json.dumps(signed).encode(), V10, KEYS)
            with self.subTest(hashes=hashes):
                self.assertIs(got.verdict, ReceiptVerdict.ACCEPT_REDACTED)
                assert got.event is not None
                assert got.refusal is not None
                self.assertEqual(got.event.content, {})
                self.assertEqual(got.refusal.code, "wrong-hash")

    def test_the_content_hash_leaves_out_transient_fields(self) -> None:
        """The first three by the specification, the others as the reference does."""
        hashed = content_hash(FIELDS)
        for name in ("signatures", "unsigned", "hashes", "age_ts", "outlier", "destinations"):
            self.assertEqual(content_hash({**FIELDS, name: {"a": 1}}), hashed, name)
            self.assertEqual(event_of({**FIELDS, name: {"a": 1}}, V10).content_hash(), hashed)
        self.assertNotEqual(content_hash({**FIELDS, "age": 1}), hashed)


class EventParsing(TestCase):
    """What an event must have, and may at most."""

    def test_keeps_the_received_bytes(self) -> None:
        raw = json.dumps(FIELDS, indent=3).encode() + b"\n"
        self.assertEqual(parse_event(raw, V10).raw, raw)

    def test_refuses_missing_fields_and_wrong_types(self) -> None:
        for name in FIELDS:
            for value in (None, [1], {"a": 1}, True, 1.5, [None]):
                if isinstance(value, dict) and name == "content":
                    continue
                with self.subTest(name, value=value):
                    fields = {**FIELDS, name: value}
                    if value is None:
                        del fields[name]
                    for version in (V1, V4, V10, V12):
                        self.assertRaises(BadEvent, event_of, fields, version)

    def test_refuses_what_is_not_an_object(self) -> None:
        for raw in (b"", b"[]", b"null", b"{", b'"{}"', b"\xff"):
            with self.subTest(raw):
                self.assertRaises(BadEvent, parse_event, raw, V10)

    def test_refuses_events_that_are_too_large(self) -> None:
        room = 65_536 - len(_canonical_size({**FIELDS, "content": {"body": ""}}))
        for letters, fits in ((room, True), (room + 1, False)):
            fields = {**FIELDS, "content": {"body": "x" * letters}}
            with self.subTest(letters):
                # Space and escapes do not count: the canonical form does.
                raw = json.dumps(fields, indent=9).replace("xxx", "\\u0078xx").encode()
                if fits:
                    self.assertEqual(parse_event(raw, V10).raw, raw)
                else:
                    self.assertRaises(BadEvent, parse_event, raw, V10)

    def test_measures_identifiers_in_bytes(self) -> None:
        for name in ("type", "sender", "room_id", "state_key"):
            for text, fits in (
                ("x" * 255, True),
                ("x" * 256, False),
                ("ä" * 127 + "x", True),
                ("ä" * 128, False),
                ("\U0001f600" * 63 + "xxx", True),
                ("\U0001f600" * 64, False),
            ):
                with self.subTest(name, text=text):
                    fields = {**FIELDS, name: text}
                    if fits:
                        event_of(fields, V10)
                    else:
                        self.assertRaises(BadEvent, event_of, fields, V10)

    def test_limits_the_number_of_prev_and_auth_events(self) -> None:
        for name, most in (("prev_events", 20), ("auth_events", 10)):
            ids = ["$" + "a" * 42 + chr(97 + count) for count in range(most + 1)]
            event_of({**FIELDS, name: ids[:most]}, V10)
            with self.assertRaises(BadEvent):
                event_of({**FIELDS, name: ids}, V10)

    def test_refuses_long_references(self) -> None:
        for name in ("prev_events", "auth_events"):
            for references, fits in (
                (["x" * 255], True),
                (["x" * 256], False),
                (["x" * 255] * 9, True),
                ([*(["x" * 44] * 8), "x" * 256], False),
                (["ä" * 127 + "x"], True),
                (["ä" * 128], False),
                (["\U0001f600" * 64], False),
            ):
                for version in (V1, V10):
                    with self.subTest(name, references=references, version=version.name):
                        pairs = [[each, {}] for each in references]
                        given = pairs if version is V1 else references
                        rest = {"event_id": "$a:b", "prev_events": [], "auth_events": []}
                        fields = {**FIELDS, **rest, name: given}
                        if fits:
                            event_of(fields, version)
                        else:
                            self.assertRaises(BadEvent, event_of, fields, version)

    def test_refuses_a_negative_depth(self) -> None:
        rest = {"event_id": "$a:b", "prev_events": []}
        for version in ROOM_VERSIONS.values():
            self.assertEqual(event_of({**FIELDS, **rest, "depth": 0}, version).depth, 0)
            with self.assertRaisesRegex(BadEvent, "below 0"):
                event_of({**FIELDS, **rest, "depth": -1}, version)
            event_of({**FIELDS, **rest, "origin_server_ts": -1}, version)

    def test_refuses_numbers_beyond_64_bits(self) -> None:
        for name in ("depth", "origin_server_ts"):
            event_of({**FIELDS, name: 2**63 - 1}, V4)
            for number in (2**63, -(2**63)):
                with self.assertRaises(BadEvent):
                    event_of({**FIELDS, name: number}, V4)

    def test_reads_references_with_hashes_in_the_first_versions(self) -> None:
        fields = {**FIELDS, "event_id": "$a:b", "prev_events": [["$b:b", {"sha256": "x"}]]}
        self.assertEqual(event_of(fields, V1).prev_event_ids, ("$b:b",))
        bads: list[Any] = [[[]], ["$b:b"], [[1, {}]], [{"$b:b": 1}]]
        for bad in bads:
            with self.subTest(bad), self.assertRaises(BadEvent):
                event_of({**fields, "prev_events": bad}, V1)

    def test_derives_the_room_id_from_the_create_event(self) -> None:
        fields = {**FIELDS, "type": "m.room.create", "state_key": ""}
        del fields["room_id"]
        event = event_of(fields, V12)
        self.assertEqual(event.room_id, "!" + event.event_id[1:])
        self.assertRaises(BadEvent, event_of, fields, V10)
        self.assertRaises(BadEvent, event_of, {**fields, "state_key": "x"}, V12)

    def test_finds_the_target_of_a_redaction(self) -> None:
        room_id = "!" + "a" * 43
        fields = {**FIELDS, "redacts": "$old", "content": {"redacts": "$new"}, "room_id": room_id}
        redaction = {**fields, "type": "m.room.redaction"}
        self.assertEqual(event_of(redaction, V10).redacts, "$old")
        self.assertEqual(event_of(redaction, V12).redacts, "$new")
        self.assertIsNone(event_of({**redaction, "redacts": 1}, V10).redacts)
        for version in (V10, V12):
            self.assertIsNone(event_of(fields, version).redacts, "it is a message")

    def test_a_parsed_event_cannot_be_changed(self) -> None:
        event = event_of(FIELDS, V10)
        with self.assertRaises(AttributeError):
            event.sender = "@b:b"  # type: ignore[misc]
        self.assertFalse(hasattr(event, "__dict__"))

    def test_can_be_pickled(self) -> None:
        event = event_of(FIELDS, V10)
        copy = pickle.loads(pickle.dumps(event))
        self.assertIs(copy.version, V10)
        self.assertEqual((copy.raw, copy.event_id), (event.raw, event.event_id))


def _canonical_size(fields: dict[str, Any]) -> bytes:
    return event_of(fields, V10).raw


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(
        ["@a:b", "$a:b", "!a:b", "join", "invite", "m.room.member", "m.room.create", "b"]
    )
)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=4)
            | st.sampled_from(
                ["sha256", "b", "ed25519:1", "membership", "signed", "users", "allow"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
NAMES = (
    *FIELDS,
    *("event_id", "hashes", "signatures", "state_key", "unsigned", "redacts", "membership"),
)
like_events = st.builds(
    lambda changed, gone: {
        name: value
        for name, value in {**FIELDS, "event_id": "$a:b", **changed}.items()
        if name not in gone
    },
    st.dictionaries(st.sampled_from(NAMES), anything, max_size=4),
    st.sets(st.sampled_from(NAMES), max_size=1),
)
versions = st.sampled_from(list(ROOM_VERSIONS.values()))


class ArbitraryEvents(TestCase):
    """Arbitrary JSON."""

    @settings(max_examples=300)
    @given(like_events | anything, versions)
    def test_objects_raise_only_the_named_error(self, fields: Any, version: Any) -> None:
        raw = json.dumps(fields).encode()  # NaN and Infinity, too, which are no JSON
        got = check_on_receipt(raw, version, KEYS)
        self.assertEqual(got.verdict is ReceiptVerdict.ACCEPT, got.refusal is None)
        try:
            event = parse_event(raw, version)
        except BadEvent:
            self.assertIs(got.verdict, ReceiptVerdict.DROP)
            return
        self._agrees(event)

    def _agrees(self, event: Event) -> None:
        """The quick ways and the careful ones."""
        version = event.version
        self.assertEqual(event.content_hash(), content_hash(event.fields))
        if version.event_ids is not EventIds.GIVEN:
            self.assertEqual(
                event.event_id, event_id_of(signed_bytes(event.fields, version), version)
            )
        once = redact(event.fields, version)
        self.assertEqual(redact(once, version), once)
        self.assertEqual(event_of(once, version).event_id, event.event_id)
        _ = event.redacts, event.membership, event.is_create
        with suppress(BadIdentifier):
            signing_servers(event)

    @settings(max_examples=200)
    @given(st.binary() | st.text().map(lambda text: text.encode(errors="surrogatepass")), versions)
    def test_bytes_are_dropped(self, raw: bytes, version: Any) -> None:
        self.assertIs(check_on_receipt(raw, version, KEYS).verdict, ReceiptVerdict.DROP)

    @given(anything, versions)
    def test_python_objects_raise_only_the_named_error(self, value: Any, version: Any) -> None:
        with suppress(BadEvent):
            event_of(value, version)

"""Signatures: made, checked, and whose an event must have."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st
from signedjson.key import decode_signing_key_base64
from signedjson.types import SigningKey
from unpaddedbase64 import decode_base64, encode_base64

from synrepl.rooms.event import Event, event_of
from synrepl.rooms.hashes import NoCanonicalJson, content_hash, reference_hash, signed_bytes
from synrepl.rooms.identifiers import BadIdentifier
from synrepl.rooms.receipt import ReceiptVerdict, check_on_receipt
from synrepl.rooms.redacting import redact
from synrepl.rooms.signatures import (
    BadServerKey,
    ServerKey,
    add_signature,
    check_json_signature,
    check_signatures,
    keys_of,
    server_key,
    sign_event,
    sign_json,
    signing_servers,
)
from synrepl.rooms.versions import ROOM_VERSIONS, V1, V4, V5, V7, V8, V10, RoomVersion, room_version
from tests.rooms.test_events import FIELDS, NAMES, anything
from tests.rooms.vector_files import files, lines

SEED = "YJDBA9Xnr2sVqXD9Vj7XVUnmFZcZrlw8Md7kMW+3XA1"
PUBLIC = "XGX0JRS2Af3be3knz2fBiRbApjm2Dh61gXDJA8kcJNI"
KEYS = keys_of({"b": {"ed25519:1": PUBLIC}, "c": {"ed25519:1": PUBLIC}})


def signing_key(key_id: str = "ed25519:1", seed: str = SEED) -> SigningKey:
    """A private key."""
    algorithm, _, name = key_id.partition(":")
    return decode_signing_key_base64(algorithm, name, seed)


def signed(*servers: str, version: RoomVersion = V10, **fields: Any) -> Event:
    """An event that these servers signed, all with the same key."""
    event = {**FIELDS, **fields}
    for server in servers:
        event = sign_event(event, version, server, signing_key())
    return event_of(event, version)


class SigningVectors(TestCase):
    """The rows of ``signing`` and the signatures among those of ``events``."""

    def test_signs_the_published_vectors(self) -> None:
        for row in lines("signing/published.jsonl"):
            with self.subTest(row["id"]):
                key = signing_key(row["key_id"], row["signing_key_seed"])
                if row["kind"] == "json":
                    made = sign_json(row["input"], row["server_name"], key)
                else:
                    version = room_version(row["room_version"])
                    made = sign_event(row["input"], version, row["server_name"], key)
                    self.assertEqual(made["hashes"]["sha256"], row["hash"])
                    signature = made["signatures"][row["server_name"]][row["key_id"]]
                    self.assertEqual(signature, row["signature"])
                if "signed" in row:
                    self.assertEqual(made, row["signed"])

    def test_verifies_the_published_vectors(self) -> None:
        for row in lines("signing/published_verify.jsonl"):
            with self.subTest(row["id"]):
                keys = {
                    key_id: server_key(key_id, key) for key_id, key in row["verify_keys"].items()
                }
                refusal = check_json_signature(row["object"], row["server_name"], keys)
                if row.get("normative", True):
                    self.assertEqual(refusal is None, row["valid"], refusal)

    def test_signs_and_verifies_the_random_vectors(self) -> None:
        for row in lines("events/random_hash_sign_redact.jsonl.gz"):
            with self.subTest(row["id"]):
                version = room_version(row["room_version"])
                server, key_id = row["signing_server"], row["signing_key_id"]
                key = signing_key(key_id, row["signing_key_seed"])
                made = sign_event(row["input"], version, server, key)
                self.assertEqual(made["signatures"][server][key_id], row["signature"])
                self.assertEqual(_plain(redact(made, version)), _plain(row["redacted"]))
                keys = keys_of({server: {key_id: row["verify_key"]}})
                self.assertIsNone(check_json_signature(redact(made, version), server, keys[server]))
                refusal = check_signatures(event_of(made, version), keys)
                if refusal is not None:  # others would have to sign, too
                    self.assertIn(refusal.code, ("no-server", "not-signed"))

    def test_verifies_every_event_of_generated_rooms(self) -> None:
        """Every event of the small generated rooms is signed by the servers that must sign it."""
        for name in files("dags/v*_30.jsonl.gz"):
            room, *events = lines(name)
            keys = keys_of(room["server_keys"])
            for line in events:
                raw = json.dumps(line["event"]).encode()
                got = check_on_receipt(raw, room_version(room["room_version"]), keys)
                self.assertIs(
                    got.verdict, ReceiptVerdict.ACCEPT, (name, line["event_id"], got.refusal)
                )


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != "unsigned"}


class SigningServers(TestCase):
    """https://spec.matrix.org/v1.16/server-server-api/#validating-hashes-and-signatures-on-received-events"""

    def servers(self, version: RoomVersion = V10, **fields: Any) -> tuple[str, ...]:
        return signing_servers(event_of({**FIELDS, **fields}, version))

    def test_has_the_senders_server(self) -> None:
        self.assertEqual(self.servers(sender="@a:b:8448"), ("b:8448",))
        with self.assertRaises(BadIdentifier):
            self.servers(sender="@a")

    def test_has_the_server_in_the_event_id(self) -> None:
        fields = {"event_id": "$a:c", "prev_events": []}
        self.assertEqual(self.servers(V1, **fields), ("b", "c"))
        self.assertEqual(self.servers(V4, **fields), ("b",))
        self.assertEqual(self.servers(V1, **fields, sender="@a:c"), ("c",))
        with self.assertRaises(BadIdentifier):
            self.servers(V1, **{**fields, "event_id": "$a"})

    def test_has_the_authorising_users_server(self) -> None:
        name = "join_authorised_via_users_server"
        fields: dict[str, Any] = {"type": "m.room.member", "state_key": "@a:b"}
        fields["content"] = {"membership": "join", name: "@v:c"}
        self.assertEqual(self.servers(V8, **fields), ("b", "c"))
        self.assertEqual(self.servers(V7, **fields), ("b",))
        self.assertEqual(self.servers(V8, **{**fields, "type": "m.room.message"}), ("b",))
        fields["content"] = {"membership": "leave", name: "@v:c"}
        self.assertEqual(self.servers(V8, **fields), ("b",))
        for voucher in (None, 7, "garbage", {"a": "@v:c"}):
            fields["content"] = {"membership": "join", name: voucher}
            with self.subTest(voucher), self.assertRaises(BadIdentifier):
                self.servers(V8, **fields)

    def test_a_third_party_invite_needs_no_signature_of_the_senders_server(self) -> None:
        fields: dict[str, Any] = {"type": "m.room.member", "state_key": "@c:c"}
        fields["content"] = {"membership": "invite", "third_party_invite": {"signed": {}}}
        self.assertEqual(self.servers(**fields), ())
        self.assertEqual(self.servers(**fields, signatures={"b": {}}), ("b",))
        self.assertEqual(self.servers(**{**fields, "type": "m.room.message"}), ("b",))
        for content in (
            {"membership": "join", "third_party_invite": {"signed": {}}},
            {"membership": "invite", "third_party_invite": {}},
            {"membership": "invite", "third_party_invite": "signed"},
            {"membership": "invite"},
        ):
            with self.subTest(content):
                self.assertEqual(self.servers(**{**fields, "content": content}), ("b",))


class SignatureChecks(TestCase):
    """Which refusal there is."""

    def code(self, event: Event, keys: Any = KEYS) -> str | None:
        refusal = check_signatures(event, keys)
        return refusal.code if refusal else None

    def test_each_server_must_have_signed(self) -> None:
        fields = {"event_id": "$a:c", "prev_events": []}
        self.assertIsNone(self.code(signed("b", "c", version=V1, **fields)))
        self.assertEqual(self.code(signed("b", version=V1, **fields)), "not-signed")
        self.assertEqual(self.code(signed("c", version=V1, **fields)), "not-signed")

    def test_refuses_missing_unknown_and_wrong_signatures(self) -> None:
        event = signed("b")
        self.assertIsNone(self.code(event))
        self.assertEqual(self.code(event, {}), "unknown-key")
        self.assertEqual(self.code(event, {"b": {}}), "unknown-key")
        self.assertEqual(self.code(signed()), "not-signed")
        self.assertEqual(self.code(signed(sender="@a")), "no-server")
        forged = {**event.fields, "depth": 2}
        self.assertEqual(self.code(event_of(forged, V10)), "bad-signature")

    def test_refuses_malformed_signatures(self) -> None:
        for signatures in (None, [], "x", {"b": None}, {"b": []}, {"b": "x"}, {"b": {}}, {}):
            with self.subTest(signatures):
                self.assertEqual(self.code(signed(signatures=signatures)), "not-signed")
        for signature in (None, 1, "", "x", "ä", "A" * 86, "A" * 87, ["A" * 86]):
            with self.subTest(signature):
                event = signed(signatures={"b": {"ed25519:1": signature}})
                self.assertEqual(self.code(event), "bad-signature")

    def test_one_valid_signature_is_enough(self) -> None:
        event = signed("b")
        of_server = {"ed25519:0": "x", **event.signatures["b"], "rsa:1": 7}
        doubly_signed = event_of({**event.fields, "signatures": {"b": of_server}}, V10)
        self.assertIsNone(self.code(doubly_signed))
        other = {"ed25519:0": server_key("ed25519:0", PUBLIC), **KEYS["b"]}
        self.assertIsNone(self.code(doubly_signed, {"b": other}))

    def test_refusals_that_more_keys_may_resolve_come_first(self) -> None:
        """Callers fetch keys that are unknown or expired."""
        fields = signed("b", version=V5).fields
        good = fields["signatures"]["b"]
        old = {"b": {"ed25519:old": server_key("ed25519:old", PUBLIC)}}
        gone = {"b": {"ed25519:gone": server_key("ed25519:gone", PUBLIC, 0)}}
        old_and_gone = {"b": {**old["b"], **gone["b"]}}
        for key_ids, keys, code in (
            (("old", "new"), old, "unknown-key"),
            (("new", "old"), old, "unknown-key"),
            (("gone", "new"), gone, "unknown-key"),
            (("gone", "old"), old_and_gone, "expired-key"),
            (("old", "gone"), old_and_gone, "expired-key"),
            (("old",), old, "bad-signature"),
        ):
            bad = {f"ed25519:{each}": "A" * 86 for each in key_ids}
            with self.subTest(key_ids):
                event = event_of({**fields, "signatures": {"b": bad}}, V5)
                self.assertEqual(self.code(event, keys), code)
                event = event_of({**fields, "signatures": {"b": {**bad, **good}}}, V5)
                known = {"b": {**keys["b"], **KEYS["b"]}}
                self.assertIsNone(self.code(event, known), "one good one is enough")

    def test_covers_the_redacted_event(self) -> None:
        event = signed("b")
        for fields, covered in (
            ({"unsigned": {"age": 1}}, False),
            ({"content": {"body": "y"}}, False),  # redaction takes it; the hash is for that
            ({"hashes": {"sha256": "x"}}, True),
            ({"origin_server_ts": 2}, True),
            ({"auth_events": ["$a"]}, True),
            ({"sender": "@c:b"}, True),
        ):
            with self.subTest(fields):
                changed = event_of({**event.fields, **fields}, V10)
                self.assertEqual(self.code(changed), "bad-signature" if covered else None)

    def test_expired_keys_do_not_count_from_version_5(self) -> None:
        event_time = FIELDS["origin_server_ts"]
        for valid_until, fits in ((event_time - 1, False), (event_time, True), (None, True)):
            keys = {"b": {"ed25519:1": ServerKey(KEYS["b"]["ed25519:1"].verify_key, valid_until)}}
            with self.subTest(valid_until):
                self.assertEqual(
                    self.code(signed("b", version=V5), keys), None if fits else "expired-key"
                )
                self.assertIsNone(self.code(signed("b", version=V4), keys))

    def test_refuses_malformed_keys(self) -> None:
        for key_id, key in (
            ("ed25519:1", "x"),
            ("ed25519:1", "ä"),
            ("ed25519:1", PUBLIC[:-2]),
            ("rsa:1", PUBLIC),
            ("ed25519", PUBLIC),
            ("ed25519:1", 5),
            ("ed25519:1", None),
            ("ed25519:1", [PUBLIC]),
            (5, PUBLIC),
        ):
            with self.subTest(key_id, key=key), self.assertRaises(BadServerKey):
                server_key(key_id, key)
        deep: Any = []
        for _ in range(3_000):
            deep = [deep]
        self.assertRaises(BadServerKey, server_key, deep, PUBLIC)
        self.assertRaises(BadServerKey, server_key, "ed25519:1", deep)
        self.assertRaises(BadServerKey, keys_of, deep)
        for valid_until in ("1", 1.5, True, []):
            with self.subTest(valid_until=valid_until), self.assertRaises(BadServerKey):
                server_key("ed25519:1", PUBLIC, valid_until)
        for published in (None, [], "x", {"b": None}, {"b": [PUBLIC]}, {"b": {"ed25519:1": {}}}):
            with self.subTest(published=published), self.assertRaises(BadServerKey):
                keys_of(published)

    def test_padding_is_accepted(self) -> None:
        """As by the reference; the specification has none."""
        event = signed("b")
        padded = event.signatures["b"]["ed25519:1"] + "=="
        fields = {**event.fields, "signatures": {"b": {"ed25519:1": padded}}}
        self.assertIsNone(self.code(event_of(fields, V10)))

    def test_signing_changes_nothing_else(self) -> None:
        before = json.dumps(FIELDS)
        for version in ROOM_VERSIONS.values():
            made = sign_event(
                {**FIELDS, "signatures": {"z": {"k": "v"}}}, version, "b", signing_key()
            )
            self.assertEqual(made["signatures"]["z"], {"k": "v"})
            self.assertEqual(len(decode_base64(made["hashes"]["sha256"])), 32)
            self.assertEqual(
                {**made, "signatures": 0, "hashes": 0}, {**FIELDS, "signatures": 0, "hashes": 0}
            )
        self.assertEqual(json.dumps(FIELDS), before)
        self.assertEqual(encode_base64(decode_base64(PUBLIC)), PUBLIC)


class SigningEvents(TestCase):
    """Signatures beside others."""

    def test_signing_another_servers_event_keeps_its_id(self) -> None:
        """A server that vouches for a join signs it as received, however its hashes are written."""
        own = sign_event(FIELDS, V10, "b", signing_key())
        digest = own["hashes"]["sha256"]
        for hashes in ({"sha256": digest + "="}, {"sha256": digest, "sha512": "x"}, {}, None, 7):
            with self.subTest(hashes):
                signed_once = add_signature({**FIELDS, "hashes": hashes}, V10, "b", signing_key())
                signed_twice = add_signature(signed_once, V10, "c", signing_key())
                self.assertEqual(signed_twice["hashes"], hashes)
                self.assertEqual(list(signed_twice["signatures"]), ["b", "c"])
                self.assertEqual(
                    event_of(signed_twice, V10).event_id, event_of(signed_once, V10).event_id
                )
                self.assertIsNone(check_signatures(event_of(signed_twice, V10), KEYS))

    def test_replaces_malformed_signatures(self) -> None:
        for signatures in (None, [], "x", {"b": "x"}, {"b": None}, {"b": []}):
            fields = {**FIELDS, "signatures": signatures}
            with self.subTest(signatures):
                made = sign_event(fields, V10, "b", signing_key())
                self.assertEqual(list(made["signatures"]["b"]), ["ed25519:1"])
                self.assertIsNone(check_signatures(event_of(made, V10), KEYS))
                self.assertEqual(
                    list(sign_json(fields, "b", signing_key())["signatures"]["b"]), ["ed25519:1"]
                )

    def test_refuses_what_has_no_canonical_json(self) -> None:
        deep: Any = []
        for _ in range(3_000):
            deep = [deep]
        values = (deep, {"a": deep, "b": 1.5}, float("nan"), float("inf"), "\ud800", b"x", {1, 2})
        for number, value in enumerate(values):
            fields = {"type": "m.room.create", "hashes": value, "content": {"creator": value}}
            for make in _MAKERS:
                with self.subTest(make=make, number=number):
                    self.assertRaises(NoCanonicalJson, make, fields)
        self.assertRaises(NoCanonicalJson, content_hash, {"content": deep})

    @settings(max_examples=300)
    @given(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), anything, max_size=5))
    def test_arbitrary_fields_raise_only_the_named_error(self, fields: dict[str, Any]) -> None:
        for make in (*_MAKERS, content_hash):
            with suppress(NoCanonicalJson):
                make(fields)

    @settings(max_examples=300)
    @given(anything | st.dictionaries(st.just("b"), anything), anything, anything, anything)
    def test_arbitrary_keys_raise_only_the_named_error(
        self, published: Any, key_id: Any, key: Any, until: Any
    ) -> None:
        with suppress(BadServerKey):
            keys_of(published)
        for each in (key_id, "ed25519:1"):
            for one in (key, PUBLIC):
                with suppress(BadServerKey):
                    server_key(each, one, until).was_valid(1)


_MAKERS: tuple[Callable[[Any], object], ...] = (
    lambda fields: signed_bytes(fields, V10),
    lambda fields: reference_hash(fields, V10),
    lambda fields: sign_event(fields, V10, "b", signing_key()),
    lambda fields: add_signature(fields, V10, "b", signing_key()),
    lambda fields: sign_json(fields, "b", signing_key()),
    lambda fields: check_json_signature(fields, "b", KEYS["b"]),
)

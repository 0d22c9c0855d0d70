"""Servers' keys are read as servers publish them."""

from __future__ import annotations

import json
from typing import Any
from unittest import TestCase

from signedjson.key import encode_verify_key_base64, generate_signing_key, get_verify_key

from synrepl.rooms import sign_json
from synrepl.services.rooms.published_keys import BadPublishedKeys, published_keys


class PublishedKeys(TestCase):
    def setUp(self) -> None:
        self.key = generate_signing_key("now")
        self.old = generate_signing_key("then")

    def answer(self, **more: Any) -> dict[str, Any]:
        """What a server answers, signed."""
        fields = {
            "server_name": "a.example",
            "verify_keys": {"ed25519:now": {"key": self.public(self.key)}},
            "old_verify_keys": {"ed25519:then": {"key": self.public(self.old), "expired_ts": 7}},
            "valid_until_ts": 10,
            **more,
        }
        return dict(sign_json(fields, "a.example", self.key))

    def public(self, key: Any) -> str:
        return encode_verify_key_base64(get_verify_key(key))

    def refused(self, answer: object, reason: str) -> None:
        with self.assertRaisesRegex(BadPublishedKeys, f"^keys.json has no keys.*{reason}"):
            published_keys(json.dumps(answer).encode(), "keys.json")

    def test_keys_in_use_have_no_end_and_old_ones_do(self) -> None:
        keys = published_keys(json.dumps(self.answer()).encode(), "x")
        self.assertEqual(set(keys), {"a.example"})
        found = {key_id: key.valid_until for key_id, key in keys["a.example"].items()}
        self.assertEqual(found, {"ed25519:now": None, "ed25519:then": 7})

    def test_the_answer_of_a_notary_has_those_of_several_servers(self) -> None:
        answers = {"server_keys": [self.answer(), self.answer()]}
        self.assertEqual(set(published_keys(json.dumps(answers).encode(), "x")), {"a.example"})

    def test_what_the_server_did_not_sign_is_refused(self) -> None:
        changed = self.answer() | {"valid_until_ts": 11}
        self.refused(changed, "a.example")
        self.refused({"server_name": "a.example"}, "a.example did not sign it")

    def test_what_is_no_such_answer_is_refused(self) -> None:
        self.refused([], "the server's name")
        self.refused({"server_name": 5}, "the server's name")
        self.refused({"server_keys": 5}, "no array")
        self.refused(self.answer() | {"verify_keys": 5}, "'verify_keys' is no object")
        self.refused(self.answer() | {"verify_keys": {"ed25519:x": 5}}, "no object")
        self.refused(self.answer() | {"verify_keys": {"ed25519:x": {}}}, "no text")
        with self.assertRaises(BadPublishedKeys):
            published_keys(b"{", "x")

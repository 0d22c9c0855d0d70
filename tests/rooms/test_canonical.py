"""Canonical JSON, and what strict versions refuse."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any
from unittest import TestCase

import canonicaljson
from hypothesis import given
from unpaddedbase64 import encode_base64

from synrepl.core import jsons
from synrepl.rooms.event import BadEvent, Event, parse_event
from synrepl.rooms.versions import ROOM_VERSIONS, V5, V6, RoomVersion
from tests.core.json_values import values
from tests.rooms.test_events import FIELDS
from tests.rooms.vector_files import lines

#: Of the specification: 1e10 is 10000000000. The reference reads it as 10000000000.0, so we do, in the
#: versions that allow it at all.
_READ_AS_THE_REFERENCE = {"spec-cj-9"}


def event_with(text: str, version: RoomVersion) -> Event:
    """An event with some JSON in its content."""
    links = '"prev_events": [], "auth_events": [], "depth": 1, "origin_server_ts": 1'
    raw = (
        f'{{"type": "a", "sender": "@a:b", "room_id": "!a:b", "event_id": "$a:b", {links},'
        f' "content": {text}}}'
    )
    return parse_event(raw.encode(errors="surrogatepass"), version)


class CanonicalJsonVectors(TestCase):
    """The rows of ``canonical_json``."""

    def test_encodes_the_published_vectors(self) -> None:
        for row in lines("canonical_json/published.jsonl"):
            with self.subTest(row["id"]):
                wanted = row["canonical"].encode()
                value, size = jsons.decode_exactly(row["input_json"].encode(), "it")
                if row["id"] in _READ_AS_THE_REFERENCE:
                    self.assertIsNone(size)
                    value = json.loads(row["input_json"], parse_float=lambda text: int(float(text)))
                self.assertEqual(jsons.canonical(value), wanted)
                self.assertEqual(jsons.canonical_of_decoded(value), wanted)

    def test_encodes_the_random_vectors(self) -> None:
        for row in lines("canonical_json/random.jsonl"):
            with self.subTest(row["id"]):
                made = jsons.canonical(row["input"])
                self.assertEqual(made, row["canonical"].encode())
                self.assertEqual(encode_base64(sha256(made).digest()), encoded(row["sha256"]))

    def test_refuses_what_strict_json_forbids(self) -> None:
        for name in ("published_strict", "strict"):
            for row in lines(f"canonical_json/{name}.jsonl"):
                for version in ROOM_VERSIONS.values():
                    wanted = row["v6_and_later" if version.strict_json else "v1_to_v5"]
                    with self.subTest(row["id"], version=version.name):
                        self.assertEqual(_verdict(row["json"], version), wanted)


def encoded(digest: str) -> str:
    """A digest in hexadecimal or Base64, in Base64."""
    return encode_base64(bytes.fromhex(digest)) if len(digest) == 64 else digest


def ascii_escapes(character: str) -> str:
    """As an escape, whatever it is."""
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at] * 256 + units[at + 1]:04x}" for at in range(0, len(units), 2))


def _verdict(text: str, version: RoomVersion) -> str:
    try:
        event_with(text, version)
    except BadEvent:
        return "reject"
    return "accept"


class UnusualJson(TestCase):
    """What the docstring of ``rooms.event`` says of odd JSON."""

    def test_the_last_of_equal_keys_counts(self) -> None:
        event = event_with('{"a": 1, "a": 2}', V6)
        self.assertEqual(event.content, {"a": 2})
        self.assertIn(b'"a": 1, "a": 2', event.raw)

    def test_accepts_any_number_where_json_is_not_strict(self) -> None:
        event = event_with('{"a": 1.0, "b": 1e3, "c": -0, "d": 9007199254740993}', V5)
        made = jsons.canonical_of_decoded(event.content)
        self.assertEqual(made, b'{"a":1.0,"b":1000.0,"c":0,"d":9007199254740993}')

    def test_refuses_other_numbers_where_json_is_strict(self) -> None:
        for number in ("1.0", "1e3", "-0", "9007199254740992", "-9007199254740992", "0.0"):
            for text in (f'{{"a": {number}}}', f'{{"a": [[{number}]]}}'):
                with self.subTest(text), self.assertRaisesRegex(BadEvent, "no integer within"):
                    event_with(text, V6)

    def test_text_that_looks_like_a_number_is_accepted(self) -> None:
        text = r'{"a": "-0", "b": "\":-0", "-0": "x\\", "c": [":-0"]}'
        self.assertEqual(event_with(text, V6).content["a"], "-0")
        with self.assertRaises(BadEvent):
            event_with(text[:-1] + ', "d": -0}', V6)

    def test_finds_negative_zero_beside_any_character(self) -> None:
        """Its absence is concluded from sizes; nothing may take more room in canonical JSON than it took."""
        fields = json.dumps({**FIELDS, "content": {"a": ["?", 7]}}, separators=(",", ":"))
        characters = [*range(0x80), 0x80, 0xFF, 0x2028, 0xFEFF, 0xFFFF, 0x10FFFF]
        for shown in (lambda text: json.dumps(text, ensure_ascii=False)[1:-1], ascii_escapes):
            raw = fields.replace("?", "".join(shown(chr(each)) for each in characters))
            parse_event(raw.encode(), V6)
            for each in characters:
                raw = fields.replace("?", shown(chr(each))).replace("7]", "-0]")
                with self.subTest(each), self.assertRaises(BadEvent):
                    parse_event(raw.encode(), V6)

    def test_refuses_numbers_that_are_too_large(self) -> None:
        for number in ("1e400", "-1e400", "9" * 5000):
            with self.subTest(number[:9]), self.assertRaises(BadEvent):
                event_with(f'{{"a": {number}}}', V5)
            with self.subTest(number[:9]), self.assertRaises(jsons.BadJson):
                jsons.decode_exactly(number.encode(), "it")

    def test_refuses_lone_surrogates_and_invalid_utf_8(self) -> None:
        for text in (r'"\ud800"', r'"\udc00\ud800"', '"\ud800"', r'{"\udfff": 1}'):
            with self.subTest(ascii(text)), self.assertRaises(BadEvent):
                event_with(f'{{"a": {text}}}', V5)

    def test_keeps_control_characters(self) -> None:
        self.assertEqual(event_with(r'{"a": "\u0000\u001f"}', V6).content["a"], "\0\x1f")
        with self.assertRaises(BadEvent):
            event_with('{"a": "\0"}', V6)

    def test_refuses_deep_nesting(self) -> None:
        # The event and its content are two levels.
        for levels, fits in (
            (jsons.MAX_EXACT_DEPTH - 2, True),
            (jsons.MAX_EXACT_DEPTH - 1, False),
            (10**5, False),
        ):
            for inmost, version in (("", V6), ("", V5), ("0.5", V5)):
                text = '{"a":' + "[" * levels + inmost + "]" * levels + "}"
                with self.subTest(levels, inmost=inmost):
                    self.assertEqual(_verdict(text, version), "accept" if fits else "reject")


class CanonicalJsonOfDecoded(TestCase):
    """What is decoded exactly may take the quick ways."""

    @given(values)
    def test_equals_the_checked_encoding(self, value: Any) -> None:
        try:
            wanted = canonicaljson.encode_canonical_json(value)
        except ValueError:  # a lone surrogate
            return
        decoded, size = jsons.decode_exactly(json.dumps(value).encode(), "it")
        self.assertEqual(jsons.canonical_of_decoded(decoded), wanted)
        if size is not None:
            self.assertEqual(size, len(wanted))
            self.assertFalse(jsons.has_float(value))

    @given(values)
    def test_detects_negative_zero(self, value: Any) -> None:
        """Beside any other JSON, it is seen exactly where it is a number."""
        text = json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")
        self.assertFalse(jsons.has_negative_zero(text))
        self.assertTrue(jsons.has_negative_zero(b"[" + text + b",-0]"))
        self.assertTrue(jsons.has_negative_zero(b'{"a":-0,"b":' + text + b"}"))

"""Errors, names, tokens and JSON."""

from __future__ import annotations

import pickle
from unittest import TestCase

import canonicaljson
from hypothesis import given

from synrepl.core import jsons, names
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import MAX_TOKEN, BadToken, Range, parse_token
from tests.core.json_values import values


class Canonical(TestCase):
    @given(values)
    def test_agrees_with_canonicaljson(self, value: object) -> None:
        try:
            wanted = canonicaljson.encode_canonical_json(value)
        except UnicodeEncodeError:  # a lone surrogate
            return
        self.assertEqual(jsons.canonical(value), wanted)

    def test_refuses_values_that_json_lacks(self) -> None:
        for value in (float("nan"), float("inf"), [float("-inf")]):
            with self.assertRaises(ValueError):
                jsons.canonical(value)


class Decode(TestCase):
    def test_whole_numbers_stay_exact(self) -> None:
        self.assertEqual(jsons.decode(b"18446744073709551616", "it"), 2**64)

    def test_refuses_malformed_and_deep_json(self) -> None:
        deep = b"[" * (jsons.MAX_DEPTH + 2) + b"]" * (jsons.MAX_DEPTH + 2)
        for data in (b"", b"{", b"[1,]", b"NaN", b"\xff", deep, b"[" * 100_000):
            with self.assertRaisesRegex(jsons.BadJson, "^the body is not valid JSON: "):
                jsons.decode(data, "the body")
        fits = b"[" * jsons.MAX_DEPTH + b"]" * jsons.MAX_DEPTH
        self.assertIsInstance(jsons.decode(fits, "the body"), list)


class Names(TestCase):
    def test_accepts_valid_names(self) -> None:
        for check, good in (
            (names.stream_name, ["events", "a_1", "x" * 45]),
            (names.writer_name, ["master", "W.1:x-y_z"]),
            (names.server_name, ["example.com", "localhost:8448", "[::1]:80"]),
        ):
            self.assertEqual([check(name) for name in good], good)

    def test_refuses_bad_names(self) -> None:
        for check, bad in (
            (names.stream_name, ["", "Events", "1a", "_a", "a b", "a\n", "é", "x" * 46]),
            (names.writer_name, ["", "a b", "-a", "a\n", "x" * 64]),
            (names.server_name, ["", "a b", "a/b", "x" * 256]),
        ):
            for name in bad:
                with self.subTest(name), self.assertRaises(names.BadName):
                    check(name)


class Tokens(TestCase):
    def test_parses_tokens_within_their_limits(self) -> None:
        self.assertEqual([parse_token("0"), parse_token(str(MAX_TOKEN))], [0, MAX_TOKEN])
        for text in ("", "-1", "+1", "1_0", "1.5", "٣", str(MAX_TOKEN + 1), "9" * 40):
            with self.subTest(text), self.assertRaises(BadToken):
                parse_token(text)

    def test_ranges_are_half_open(self) -> None:
        span = Range(2, 4)
        self.assertEqual([n for n in range(7) if n in span], [3, 4])
        self.assertEqual([Range(4, 4).empty, Range(5, 4).empty, span.empty], [True, True, False])


class Errors(TestCase):
    def test_the_docstring_is_the_message(self) -> None:
        error = BadToken(value="x")
        self.assertIn("'x' is not a token", str(error))
        self.assertEqual(BadToken.placeholders(), {"value"})

    def test_errors_can_be_pickled(self) -> None:
        error = pickle.loads(pickle.dumps(BadToken(value="x")))
        self.assertIsInstance(error, SynreplError)
        self.assertEqual((str(error), error.facts), (str(BadToken(value="x")), {"value": "x"}))

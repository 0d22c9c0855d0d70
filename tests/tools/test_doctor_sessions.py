"""Queries are shown without values, which may be secret."""

from __future__ import annotations

from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from synrepl.tools.doctor.sessions import QUERY_CHARS, masked


class MaskedQueries(TestCase):
    @given(st.text(max_size=200).filter(lambda text: "\x00" not in text))
    def test_have_no_literals(self, secret: str) -> None:
        quoted = "'" + secret.replace("'", "''") + "'"
        self.assertEqual(masked(f"SELECT {quoted}, 1"), "SELECT '…', 1")
        self.assertEqual(masked(f"SELECT {quoted[:-1]}"), "SELECT '…'")  # cut off by the server

    def test_have_no_dollar_quoted_strings(self) -> None:
        self.assertEqual(masked("DO $$ it's $$, $a$ x $$ y $a$, z"), "DO '…', '…', z")
        self.assertEqual(masked("SELECT $1 = $2"), "SELECT $1 = $2")

    def test_are_one_short_line(self) -> None:
        text = masked("SELECT\n\t a,\r\n" + "b, " * 100)
        self.assertTrue(text.startswith("SELECT a, b, b"))
        self.assertEqual(len(text), QUERY_CHARS)

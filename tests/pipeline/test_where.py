"""The option ``where``: its grammar, its types, and the ranges that follow from it."""

from __future__ import annotations

import random
from unittest import TestCase

from synrepl.core.tokens import MAX_TOKEN, Range
from synrepl.pipeline.source.database.stream_schema import NoSuchColumn, StreamSchema
from synrepl.pipeline.source.where.condition import (
    Compared,
    Condition,
    Either,
    Every,
    IsNull,
    Like,
    Not,
    OneOf,
    WhereMismatch,
    check_condition,
    facts_at_most,
    may_match_stream,
    to_sql,
    token_range,
)
from synrepl.pipeline.source.where.grammar import MAX_DEPTH, MAX_LENGTH, BadWhere, parse_where
from synrepl.streams.columns import columns
from tests.storage.samples import EVERYTHING, NOTES

NOTE = StreamSchema("notes", False, columns(NOTES))
WHOLE = StreamSchema("everything", False, columns(EVERYTHING))
DOWN = StreamSchema("notes", True, columns(NOTES))

N1, N2, N3 = (Compared("n", "=", n) for n in (1, 2, 3))


class Grammar(TestCase):
    """What is accepted, and as what."""

    def test_conditions_are_parsed(self) -> None:
        for text, tree in [
            ("n=1", N1),
            ("n = 1 OR n = 2 AND n = 3", Either((N1, Every((N2, N3))))),
            ("(n = 1 or n = 2) and n = 3", Every((Either((N1, N2)), N3))),
            ("NOT n = 1 AND n = 2", Every((Not(N1), N2))),
            ("n <> 1", Not(N1)),
            ("n != 1", Not(N1)),
            ("n>=-5", Compared("n", ">=", -5)),
            ("n < +1.5e3", Compared("n", "<", 1500.0)),
            ("n = .5", Compared("n", "=", 0.5)),
            ("t = 'it''s'", Compared("t", "=", "it's")),
            ("t = ''", Compared("t", "=", "")),
            ("t = '-- /* \" ; \n'", Compared("t", "=", '-- /* " ; \n')),
            ('"or" = true', Compared("or", "=", True)),
            ('"a""b" IS NULL', IsNull('a"b')),
            ("`a``b` is not null", Not(IsNull("a`b"))),
            ("größe = 1", Compared("größe", "=", 1)),
            ("n IN (1,2)", OneOf("n", (1, 2))),
            ("n not in ('x')", Not(OneOf("n", ("x",)))),
            ("t LIKE 'a\\%%'", Like("t", "a\\%%")),
            ("n BETWEEN 1 AND 2", Every((Compared("n", ">=", 1), Compared("n", "<=", 2)))),
        ]:  # fmt: skip
            self.assertEqual(parse_where(text), tree, text)

    def test_other_text_is_refused_with_its_place(self) -> None:
        for text, at, wanted in [
            ("", 1, "the name of a column"),
            ("  ", 3, "the name of a column"),
            ("n", 2, "a comparison"),
            ("n =", 4, "a text in single quotes"),
            ("n = m", 5, "a text in single quotes"),
            ("1 = n", 1, "the name of a column"),
            ("n = 1 n = 2", 7, "AND, OR or the end"),
            ("n = 1; DROP TABLE x", 6, "a column, a constant or an operator"),
            ("n = 1 -- x", 7, "a column, a constant or an operator"),
            ("length(t) = 1", 7, "a comparison"),
            ("t = 'a", 5, "a column, a constant or an operator"),
            ("t = E'a'", 5, "a text in single quotes"),
            ("n = 1e", 5, "a column, a constant or an operator"),
            ("n = 1x", 5, "a column, a constant or an operator"),
            ("n = 123456789012345678901", 5, "a number"),
            ("n IN ()", 7, "a text in single quotes"),
            ("n IN (1", 8, ") is expected"),
            ("n IS 1", 6, "NULL is expected"),
            ("n BETWEEN 1 OR 2", 13, "AND is expected"),
            ("t LIKE 'a\\'", 8, "does not end with an escape"),
            ("t LIKE 5", 8, "a pattern"),
            ("(n = 1", 7, ") is expected"),
            ("n = 1 AND", 10, "the name of a column"),
            ("n = 1\0", 6, "without this character"),
            ('"" = 1', 1, "a column, a constant or an operator"),
        ]:
            with self.subTest(text), self.assertRaises(BadWhere) as raised:
                parse_where(text)
            self.assertEqual(raised.exception.facts["at"], at, text)
            self.assertIn(wanted, str(raised.exception))

    def test_size_and_depth_are_bounded(self) -> None:
        deep = MAX_DEPTH - 1
        parse_where("(" * deep + "n = 1" + ")" * deep)
        for text in (
            "(" * MAX_DEPTH + "n = 1" + ")" * MAX_DEPTH,
            "NOT " * 100_000 + "n = 1",
            "n = 1" + " " * MAX_LENGTH,
        ):
            self.assertRaises(BadWhere, parse_where, text)
        self.assertEqual(
            parse_where(f"n IN ({','.join(['7'] * 100_000)})"), OneOf("n", (7,) * 100_000)
        )

    def test_any_text_is_parsed_or_refused(self) -> None:
        dice = random.Random(7)
        parts = [
            "n",
            "=",
            "'",
            '"',
            "(",
            ")",
            ",",
            " AND ",
            " NOT ",
            "IN",
            "1",
            "\\",
            "é",
            "-",
            " ",
        ]
        for _ in range(20_000):
            text = "".join(dice.choices(parts, k=dice.randrange(12)))
            try:
                sql = to_sql(parse_where(text), NOTE)
            except BadWhere:
                continue
            self.assertNotIn("\0", sql)


class Types(TestCase):
    """Constants have to be of the column's type."""

    def check(self, text: str, *of: StreamSchema) -> None:
        check_condition(parse_where(text), of or (WHOLE,), len(of) > 1)

    def test_fitting_constants_are_accepted(self) -> None:
        for text in [
            "text = 'a' AND doc LIKE '%x%' AND whole IN (1, -9223372036854775808)",
            "real = 1 OR real > 1.5 OR flag = true OR flag IN (true, false)",
            "list IS NULL OR doc_or_null IS NULL",
        ]:
            self.check(text)
        self.check("stream = 'notes' AND n = 1 AND whole > 3", NOTE, WHOLE)

    def test_other_constants_are_refused(self) -> None:
        for text in [
            "text = 1",
            "whole = 'x'",
            "whole = 1.5",
            "whole = true",
            "whole IN (1, 'x')",
            "whole = 9223372036854775808",
            "real = 'x'",
            "real = true",
            "flag = 1",
            "flag > false",
            "flag LIKE 'x'",
            "list = 'x'",
            "NOT (whole = 1 OR whole = 'x')",
        ]:
            with self.subTest(text):
                self.assertRaises(WhereMismatch, self.check, text)

    def test_unknown_columns_are_refused(self) -> None:
        with self.assertRaises(NoSuchColumn) as raised:
            self.check("n = 1 AND wholes = 3", NOTE, WHOLE)
        self.assertIn("in notes, everything; did you mean 'whole'", str(raised.exception))
        self.assertRaises(NoSuchColumn, self.check, "stream = 'notes'", NOTE)


class Ranges(TestCase):
    """Tests of ``stream_id`` and of ``stream`` limit what is read."""

    def span(self, text: str, of: StreamSchema = NOTE) -> Range:
        return token_range(parse_where(text), of)

    def test_tests_of_ids_limit_the_range(self) -> None:
        whole = Range(0, MAX_TOKEN)
        self.assertEqual(token_range(None, NOTE), whole)
        for text, span in [
            ("stream_id = 7", Range(6, 7)),
            ("stream_id IN (9, 4)", Range(3, 9)),
            ("stream_id > 4 AND (stream_id <= 8 AND n = 1)", Range(4, 8)),
            ("stream_id BETWEEN 5 AND 8", Range(4, 8)),
            ("NOT stream_id = 7", whole),
            ("stream_id = 7 OR n = 1", whole),
            ("n = 7", whole),
        ]:
            self.assertEqual(self.span(text), span, text)
        self.assertTrue(self.span("stream_id < 1").empty)
        self.assertTrue(self.span("stream_id > 8 AND stream_id < 3").empty)

    def test_tests_of_descending_ids_limit_the_range(self) -> None:
        self.assertEqual(self.span("stream_id = -7", DOWN), Range(6, 7))
        self.assertEqual(self.span("stream_id > -4", DOWN), Range(0, 3))
        self.assertEqual(self.span("stream_id <= -4", DOWN), Range(3, MAX_TOKEN))

    def test_listed_facts_are_counted(self) -> None:
        for text, most in [
            ("stream_id IN (1, 2, 3) AND n = 1", 3),
            ("stream_id = 1 AND stream_id IN (1, 2)", 1),
            ("stream_id IN (1, 2) OR n = 1", None),
            ("NOT stream_id IN (1, 2)", None),
        ]:
            self.assertEqual(facts_at_most(parse_where(text)), most, text)

    def test_streams_that_cannot_match_are_left_out(self) -> None:
        for text, notes in [
            ("stream = 'notes'", True),
            ("stream IN ('a', 'b')", False),
            ("stream = 'a' OR n = 1", True),
            ("NOT stream = 'notes'", True),
        ]:
            self.assertEqual(may_match_stream(parse_where(text), "notes"), notes, text)

    def test_a_missing_column_is_null(self) -> None:
        for given, sql in [
            (IsNull("whole"), "NULL IS NULL"),
            (Compared("stream", "=", "x'y"), "'notes' = 'x''y'"),
            (Compared("text", ">", "\\"), "\"text\" > '\\' COLLATE \"C\""),
            (Not(OneOf("n", (1,))), 'NOT ("n" IN (CAST(1 AS bigint)))'),
        ]:  # fmt: skip
            condition: Condition = given
            self.assertEqual(to_sql(condition, NOTE), sql)

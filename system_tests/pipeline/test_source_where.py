"""The option ``where``: applied in the database, with the same meaning as in Spark."""

from __future__ import annotations

from typing import Any

from synrepl.pipeline.options import UnknownOption
from synrepl.pipeline.source.database.stream_schema import NoSuchColumn
from synrepl.pipeline.source.where.condition import WhereMismatch
from synrepl.pipeline.source.where.grammar import BadWhere
from system_tests.pipeline.source_case import SourceCase

TEXTS = ["", "a", "A", "ab", "a'b", "a%b", "a_b", "a\\b", "é", "z", "漢", "🎉", " a"]
REALS = [0.0, -0.0, 1.5, -1e300, 5e-324]

#: Conditions that mean the same to Spark SQL.
CONDITIONS = [
    "text = 'a'",
    "text <> 'a'",
    "text != 'a' and not text = 'z'",
    "text > 'a'",
    "text <= 'é'",
    "text BETWEEN 'A' AND 'a'",
    "text IN ('a', 'é', 'none')",
    "text NOT IN ('a', 'é')",
    "text LIKE 'a%'",
    "text LIKE '_'",
    "text NOT LIKE '%b'",
    "text_or_null IS NULL",
    "text_or_null IS NOT NULL",
    "NOT (text_or_null = 'a')",
    "NOT text_or_null = 'a' OR flag_or_null = true AND whole > 5",
    "(text_or_null = 'a' OR flag_or_null = true) AND whole > 5",
    "doc = '{}'",
    "whole = 3",
    "whole > 3 AND whole <= 9",
    "whole NOT BETWEEN 3 AND 9",
    "whole IN (1, 2, 99)",
    "whole = -9223372036854775808",
    "flag = true",
    "flag IN (FALSE)",
    "real > 0",
    "real = 0.0",
    "real >= 1.5e0 OR real < -1",
    "list_or_null IS NULL",
    "stream_id = 4",
    "stream_id IN (2, 5, 700) AND `whole` < 4",
    "stream_id > 3 AND stream_id < 6",
    "stream_id >= 9223372036854775807",
    "stream_id < -5",
    "stream_id = 3 OR stream_id = 8",
    "NOT (stream_id = 3)",
    "writer = 'sql'",
    "writer = 'nobody'",
]


class PushedConditions(SourceCase):
    """A condition in the database returns the rows that Spark's own filter returns."""

    def fill(self) -> None:
        for n, text in enumerate(TEXTS):
            cells: dict[str, Any] = {
                "text": text, "whole": n, "flag": n % 2 == 0, "real": REALS[n % len(REALS)],
                "doc": {} if n % 2 else [n], "list": ["x"] * (n % 2),
            }  # fmt: skip
            if n % 3:
                cells |= {"text_or_null": text, "flag_or_null": n % 2 == 0, "list_or_null": []}
            self.append("everything", cells)

    def test_conditions_select_the_same_rows_as_in_spark(self) -> None:
        self.fill()
        frame = self.read("everything")
        whole = self.spark.createDataFrame(frame.collect(), frame.schema)
        whole.cache()
        self.addCleanup(whole.unpersist)
        for condition in CONDITIONS:
            found = self.read("everything", where=condition, columns="stream_id").collect()
            wanted = {row.stream_id for row in whole.filter(condition).collect()}
            self.assertEqual({row.stream_id for row in found}, wanted, condition)
            self.assertEqual(len(found), len(wanted), condition)

    def test_a_query_never_sees_the_filter_of_another_one(self) -> None:
        self.notes(1, 9)
        frame = self.read()
        filtered = frame.filter("n = 3")
        self.assertEqual([filtered.count(), frame.count(), filtered.count()], [1, 9, 1])
        self.assertEqual(frame.join(filtered.select("n"), "n").count(), 1)
        self.assertEqual(frame.filter("n > 3").count(), 6)
        narrow = self.read(where="n <= 5")
        self.assertEqual([narrow.filter("n > 3").count(), narrow.count()], [2, 5])
        # It used to be an option, and Spark mixed the rows of such queries up.
        error = self.ours(self.read, push_filters=True)
        self.assertIsInstance(error, UnknownOption)

    def test_excluded_rows_are_not_read(self) -> None:
        self.fill()
        self.notes(1, 30)
        for stream, where, rows, parts in [
            ("everything", "text = 'a'", 1, 1),
            ("notes", "stream_id > 28", 2, 1),
            ("notes", "stream_id = 99", 0, 1),  # Spark makes one of none
            ("notes,everything", "stream = 'notes'", 30, 1),
            ("notes,everything", "stream IN ('notes', 'x') AND n < 3", 2, 1),
            ("notes,everything", "stream <> 'notes'", len(TEXTS), 2),
            ("notes,everything", "whole = 3", 1, 2),
            ("notes,everything", "whole IS NULL", 30, 2),
            ("notes,everything", "doc > ''", len(TEXTS), 2),
            ("notes,everything", "stream < 'f'", len(TEXTS), 2),
        ]:
            frame = self.read(stream, where=where)
            self.assertEqual((frame.count(), frame.rdd.getNumPartitions()), (rows, parts), where)

    def test_listed_facts_are_read_by_one_task(self) -> None:
        self.notes(1, 40)
        self.sql("ANALYZE")
        frame = self.read(where="stream_id IN (1, 20, 40, 41)", rows_per_partition=7)
        self.assertEqual(sorted(row.n for row in frame.collect()), [1, 20, 40])
        self.assertEqual(frame.rdd.getNumPartitions(), 1)

    def test_a_number_of_partitions_can_be_asked_for(self) -> None:
        self.notes(1, 40)
        self.sql("ANALYZE")
        for partitions in (1, 4):
            frame = self.read(partitions=partitions)
            self.assertEqual(frame.rdd.getNumPartitions(), partitions)
            self.assertEqual(frame.count(), 40)

    def test_a_streaming_query_reads_only_the_rows_that_pass(self) -> None:
        self.notes(1, 9)
        self.query(where="n BETWEEN 3 AND 5 OR n = 8", columns="n", partitions=2)
        self.assertEqual(self.numbers(), [3, 4, 5, 8])
        self.notes(10, 12)
        self.query(where="n IN (4, 11)", columns="n")
        self.assertEqual(self.numbers(), [3, 4, 5, 8, 11])

    def test_a_condition_that_does_not_fit_is_refused(self) -> None:
        self.notes(1, 1)
        for where, kind, words in [
            ("n = 1; DROP TABLE synrepl.notes", BadWhere, "character 6 ("),
            ("nn = 1", NoSuchColumn, "did you mean 'n'"),
            ("n = 'x'", WhereMismatch, "compare it with a whole number of 64 bits"),
        ]:
            error = self.ours(self.read, where=where)
            self.assertIsInstance(error, kind)
            self.assertIn(words, str(error))
        self.assertEqual(self.read().count(), 1)

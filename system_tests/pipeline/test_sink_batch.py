"""Batch jobs: each row becomes a fact once, in order."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

from synrepl.pipeline.datasource import register
from synrepl.streams.definition import Fact
from synrepl.streams.synapse.backfill import BACKFILL
from synrepl.streams.synapse.events import EVENTS
from system_tests.pipeline.sink_case import SinkCase
from tests.storage.samples import EVERYTHING, note, rows_of

NOTES_DDL = "text string, n bigint"


class SinkBatches(SinkCase):
    """Rows are written as facts."""

    async def test_rows_are_appended_in_order(self) -> None:
        rows = [(f"text {n}", n) for n in range(1000)]
        self.write(self.frame(NOTES_DDL, *rows, parts=4))
        self.assertEqual(self.notes(), [("spark", *row) for row in rows])
        facts = await self.facts()
        self.assertEqual([len(fact.rows) for fact in facts], [1] * 1000)
        self.assertEqual(self.left_over(), 0)

    async def test_every_type_is_written(self) -> None:
        fields = EVERYTHING.kinds[""].__struct_fields__
        rows = [row for row in rows_of(EVERYTHING) if row.doc is not None]  # type: ignore[attr-defined]
        ddl = (
            "text string, whole bigint, flag boolean, real double, doc string, list array<string>,"
            " text_or_null string, whole_or_null bigint, flag_or_null boolean,"
            " real_or_null double, doc_or_null string, list_or_null array<string>"
        )

        def cell(field: str, value: Any) -> Any:
            if field.startswith("doc") and value is not None:
                return json.dumps(value, ensure_ascii=False)
            return value

        cells = [tuple(cell(field, getattr(row, field)) for field in fields) for row in rows]
        self.write(self.frame(ddl, *cells), "everything", writer="w1")
        facts = await self.facts(EVERYTHING)
        self.assertEqual([fact.rows[0] for fact in facts], rows)
        self.assertEqual({fact.writer for fact in facts}, {"w1"})

    async def test_columns_match_by_name_and_narrower_types_are_accepted(self) -> None:
        self.write(self.frame("n int, text string", (1, "a"), (2, "b")))
        self.write(self.frame("text string", ("c",)))
        self.write(self.frame("n decimal(20,0), text string", (Decimal(2**63 - 1), "d")))
        self.assertEqual(
            self.notes(),
            [("spark", "a", 1), ("spark", "b", 2), ("spark", "c", None), ("spark", "d", 2**63 - 1)],
        )

    async def test_a_descending_stream_is_written(self) -> None:
        ddl = "event_id string, room_id string, type string"
        self.write(self.frame(ddl, ("$a", "!r", "m"), ("$b", "!r", "m")), "backfill")
        facts = await self.facts(BACKFILL)
        self.assertEqual([(f.token, f.rows[0].event_id) for f in facts], [(1, "$a"), (2, "$b")])  # type: ignore[attr-defined]

    async def test_written_rows_are_read_back(self) -> None:
        register(self.spark)
        options = {"database": self.dsn, "stream": "notes"}
        frame = self.frame(NOTES_DDL, ("a", 1), ("b", 2))
        frame.write.format("synrepl").options(**options).mode("append").save()
        read = self.spark.read.format("synrepl").options(**options).load()
        self.assertEqual(
            sorted(map(tuple, read.collect())), [(1, 0, "spark", "a", 1), (2, 0, "spark", "b", 2)]
        )

    async def test_an_empty_dataframe_appends_nothing(self) -> None:
        self.write(self.frame(NOTES_DDL))
        self.assertEqual(self.notes(), [])

    async def test_a_sequence_behind_its_table_is_advanced(self) -> None:
        self.write(self.frame(NOTES_DDL, *(("a", n) for n in range(40))))
        self.sql("SELECT setval('synrepl._notes_seq', 8)")
        self.write(self.frame(NOTES_DDL, ("b", 1)))
        self.assertEqual((await self.facts())[-1], Fact(41, "spark", (note("b", 1),)))

    async def test_a_repeated_key_appends_once(self) -> None:
        frame = self.frame(NOTES_DDL, ("a", 1), ("b", 2), parts=2)
        self.write(frame, key="day-1")
        self.write(frame, key="day-1")
        self.assertEqual(len(self.notes()), 2)
        self.assertEqual(self.left_over(), 0)
        self.refused(self.frame(NOTES_DDL, ("a", 1)), "'spark/day-1'", "other rows", key="day-1")
        self.write(frame, key="day-2")
        self.assertEqual(len(self.notes()), 4)

    # -- rows that do not fit -----------------------------------------------------------

    async def test_bad_rows_are_quarantined_with_a_reason(self) -> None:
        ddl = (
            "text string, whole decimal(38,0), flag boolean, real double, doc string,"
            " list array<string>"
        )
        fine = ("a", Decimal(1), True, 1.0, "{}", ["x"])
        spoilt = [
            ("a\0b", "'text'", "NUL"),
            (None, "'text'", "NULL"),
            (Decimal(2**63), "'whole'", "64 bits"),
            (Decimal(-(2**63) - 1), "'whole'", "64 bits"),
            (math.nan, "'real'", "finite"),
            (-math.inf, "'real'", "finite"),
            ("{", "'doc'", "JSON"),
            (r'"\ud83d"', "'doc'", "JSON"),
            ("[" * 100_000, "'doc'", "JSON"),
            (["x", None], "'list'", "NULL"),
            (["x\0"], "'list'", "NUL"),
        ]
        names = ["text", "whole", "flag", "real", "doc", "list"]
        bad = []
        for value, column, _ in spoilt:
            row = list(fine)
            row[names.index(column.strip("'"))] = value
            bad.append(tuple(row))
        self.write(self.frame(ddl, fine, *bad, fine, parts=2), "everything", key="k")
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl.everything"), 2)
        found = list(self.quarantined())
        self.assertEqual(len(found), len(spoilt))
        for (reason, _), (_, *words) in zip(found, spoilt, strict=True):
            for word in words:
                self.assertIn(word, reason)
        self.assertEqual(found[0][1]["text"], "a\0b")
        self.assertEqual(found[2][1]["whole"], str(2**63))
        (where,) = self.rows("SELECT DISTINCT stream, writer FROM synrepl._quarantine")
        self.assertEqual(where, ("everything", "spark"))
        self.assertEqual(self.left_over(), 0)

    async def test_rows_of_unknown_kinds_are_quarantined(self) -> None:
        ddl = "kind string, room_id string"
        self.write(self.frame(ddl, ("state-all", "!a"), ("new", "!b"), (None, "!c")), "events")
        self.assertEqual(len(await self.facts(EVENTS)), 1)
        reasons = [reason for reason, _ in self.quarantined()]
        self.assertIn("one of ", reasons[0])
        self.assertIn("NULL", reasons[1])

    async def test_bad_rows_are_refused_on_request(self) -> None:
        frame = self.frame(NOTES_DDL, ("a", 1), ("\0", 2), ("b\0", 3), parts=3)
        self.refused(frame, "2 of 3 rows", "'notes'", "NUL", on_bad_rows="refuse")
        self.assertEqual(self.notes(), [])
        self.assertEqual(list(self.quarantined()), [])
        self.assertEqual(self.left_over(), 0)

"""Views by key: the newest rows, what changed, and a table that follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from synrepl.pipeline.source.database.stream_schema import NoSuchColumn
from synrepl.pipeline.views.by_key import CHANGE, KeyMissing, changes_by_key, latest_by_key
from synrepl.pipeline.views.follow import ViewFailed, upsert_into
from synrepl.positions.vector import BadVector
from system_tests.pipeline.source_case import SourceCase


class Views(SourceCase):
    """The key is the text of a note, and the state its number."""

    def note(self, text: str, n: int, writer: str = "sql", on: Any = None) -> int:
        return self.append("notes", {"text": text, "n": n}, writer=writer, on=on)

    def fill(self) -> None:
        self.note("a", 1)
        self.note("b", 2)
        self.note("a", 3)
        self.append("notes", {"text": "c", "n": 4}, {"text": "c", "n": 5})

    def test_the_newest_row_of_each_key(self) -> None:
        self.fill()
        rows = self.read()
        newest = latest_by_key(rows, ["text"])
        self.assertEqual(newest.columns, rows.columns)
        self.assertEqual(
            sorted((row.text, row.n, row.stream_id) for row in newest.collect()),
            [("a", 3, 3), ("b", 2, 2), ("c", 5, 4)],
        )

    def test_the_newest_row_of_a_descending_stream(self) -> None:
        for event_id in ("$1", "$2"):
            self.append("backfill", {"event_id": event_id, "room_id": "!r", "type": "t"})
        found = latest_by_key(self.read("backfill"), ["room_id", "state_key"]).collect()
        self.assertEqual([(row.stream_id, row.event_id) for row in found], [(-2, "$2")])

    def test_changes_between_two_positions(self) -> None:
        self.fill()
        rows = self.read()

        def changes(after: str, upto: str) -> list[tuple[str, str, int]]:
            found = changes_by_key(rows, ["text"], after, upto).collect()
            return sorted((row.text, row[CHANGE], row.n) for row in found)

        self.assertEqual(
            changes("2", "4"),
            [("a", "update_postimage", 3), ("a", "update_preimage", 1), ("c", "insert", 5)],
        )
        self.assertEqual(changes("0", "2"), [("a", "insert", 1), ("b", "insert", 2)])
        self.assertEqual(changes("4", "4"), [])
        # By writer: of another one nothing beyond 1 has been read.
        self.assertEqual(changes("1~sql.4", "9"), [])
        self.assertEqual(changes("1~other.4", "2"), [("b", "insert", 2)])
        self.assertRaises(BadVector, changes, "x", "2")

    def test_a_table_follows_the_newest_rows(self) -> None:
        self.fill()
        path = Path(self.mktemp())
        follow = upsert_into(path, ["text"])

        def state() -> dict[str, int]:
            found = DeltaTable(path).to_pyarrow_table().to_pylist()
            self.assertEqual(len(found), len({row["text"] for row in found}))
            return {row["text"]: row["n"] for row in found}

        self.follow(follow)
        self.assertEqual(state(), {"a": 3, "b": 2, "c": 5})
        self.note("b", 6)
        self.note("d", 7)
        self.follow(follow, max_rows_per_batch=1)
        self.assertEqual(state(), {"a": 3, "b": 6, "c": 5, "d": 7})
        # Everything again, oldest first: older rows replace nothing.
        self.checkpoint = self.mktemp()
        version = DeltaTable(path).version()
        self.follow(follow, max_rows_per_batch=1)
        self.assertEqual(state(), {"a": 3, "b": 6, "c": 5, "d": 7})
        self.assertGreaterEqual(DeltaTable(path).version(), version)

    def test_a_late_fact_of_another_writer_replaces_no_newer_one(self) -> None:
        self.add_writers("notes", "w1")
        path = Path(self.mktemp())
        follow = upsert_into(path, ["text"])
        held = self.open()
        self.note("a", 1, on=held)  # has the lower token, and commits later
        self.note("a", 2, writer="w1")
        self.follow(follow)
        held.commit()
        self.follow(follow)
        self.assertEqual([row["n"] for row in DeltaTable(path).to_pyarrow_table().to_pylist()], [2])

    def test_a_key_of_several_columns_may_have_nulls(self) -> None:
        path = Path(self.mktemp())
        follow = upsert_into(path, ["text", "writer", "n"])
        for n in 1, None, 1, None, 2:
            self.append("notes", {"text": "a", "n": n})
            self.follow(follow)
        rows = DeltaTable(path).to_pyarrow_table().to_pylist()
        self.assertEqual(
            {(row["n"], row["stream_id"]) for row in rows}, {(1, 3), (None, 4), (2, 5)}
        )

    def test_what_is_no_view_is_refused(self) -> None:
        self.fill()
        self.assertRaises(KeyMissing, upsert_into, "x", [])
        self.assertRaises(KeyMissing, latest_by_key, self.read(), [])
        self.assertRaises(NoSuchColumn, latest_by_key, self.read(), ["txt"])
        path = Path(self.mktemp())
        path.write_text("no folder", encoding="utf-8")
        error = self.ours(upsert_into(path, ["text"]), self.read(), 0)
        self.assertIsInstance(error, ViewFailed)
        self.assertIn(str(path), str(error))

    def follow(self, follow: Any, **options: object) -> None:
        """Run a query that ends when it has read everything."""
        reader = self.spark.readStream.format("synrepl").options(
            database=self.dsn,
            stream="notes",
            **{key: str(value) for key, value in options.items()},
        )
        writer = reader.load().writeStream.foreachBatch(follow)
        query = writer.option("checkpointLocation", self.checkpoint).trigger(availableNow=True)
        query.start().awaitTermination()

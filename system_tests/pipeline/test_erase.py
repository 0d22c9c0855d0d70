"""Erasing from a lake, with Spark, PostgreSQL and the tables of a real Synapse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow.parquet as pq
from deltalake import DeltaTable
from twisted.internet import reactor
from twisted.trial.unittest import TestCase

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake.compact.compact import compact
from synrepl.pipeline.lake.data_files import is_by_room
from synrepl.pipeline.lake.erase import erase as erasing
from synrepl.pipeline.lake.erase import redacted_events, redactions
from synrepl.pipeline.lake.erase.erase import ErasureReport, erase
from synrepl.pipeline.lake.erase.erasure_record import RECORD_FILE, ErasureRecordUnreadable
from synrepl.pipeline.lake.erase.pending import pending
from synrepl.pipeline.lake.erase.redaction_index import redaction_folder
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land.landing import Landing
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.database.synapse_database import SynapseDatabase
from synrepl.storage.tables import ensure_tables
from synrepl.streams.synapse.backfill import BACKFILL
from synrepl.streams.synapse.events import EVENTS
from system_tests.pipeline.spark_fixture import shared_session
from tests.storage.foreign_databases import foreign_database
from tests.storage.postgres import MIGRATED
from tests.storage.samples import EVERYTHING, NOTES

ALICE = "@alice:example.org"
BOB = "@bob:example.org"


def holding(lake: Lake, text: str) -> list[Path]:
    """The files below a lake that contain a text anywhere."""
    files = (path for path in sorted(lake.path.rglob("*")) if path.is_file())
    return [path for path in files if any(text in each for each in _texts(path))]


def _texts(path: Path) -> Iterator[str]:
    data = path.read_bytes()
    yield data.decode(errors="replace")
    if path.suffix == ".parquet":
        file = pq.ParquetFile(path)
        yield str(file.metadata.to_dict())
        yield str(file.schema_arrow.metadata)
        for batch in file.iter_batches():
            for column in batch.columns:
                yield from map(str, column.to_pylist())


class ErasureCase(TestCase):
    """A lake of a database with rows of the test."""

    timeout = 300
    dsn: str
    source: SourceDatabase

    def begin(self, dsn: str, source: SourceDatabase) -> None:
        self.dsn, self.source = dsn, source
        self.addCleanup(source.close)
        self.spark = shared_session()
        self.lake = Lake.open_or_create(Path(self.mktemp()), source.server, source.is_lossy)

    def sql(self, statement: str, *params: object) -> Any:
        connection = psycopg2.connect(self.dsn)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(statement, params)
                return cursor.fetchone()[0] if cursor.description else None
        finally:
            connection.close()

    def land(self) -> None:
        """Land all rows."""
        with self.lake.write_lock():
            todo = pending(self.spark, self.source, self.lake).known
            landing = Landing(
                self.spark, self.lake, self.source, self.dsn, erasures=lambda: todo, task_rows=200
            )
            streams = list(self.source.streams)
            self.source.observe(streams)
            for _ in landing.rounds(streams):
                pass

    def erase(self, **more: Any) -> ErasureReport:
        with self.lake.write_lock():
            return erase(self.spark, self.lake, pending(self.spark, self.source, self.lake), **more)

    def rows(self, stream: str, *columns: str) -> list[tuple[Any, ...]]:
        """Stream ID, row number and some cells of all rows of a stream, in order."""
        table = self.lake.table(stream)
        found: list[tuple[Any, ...]] = []
        for file in table.files:
            read = pq.read_table(table.path_of(file), columns=["stream_id", "row_no", *columns])
            found += zip(*(column.to_pylist() for column in read.columns), strict=True)
        return sorted(found, key=lambda row: (abs(row[0]), row[1]))

    def cells(self, stream: str, *columns: str) -> list[tuple[Any, ...]]:
        """Some cells of all rows of a stream, in order."""
        return [row[2:] for row in self.rows(stream, *columns)]


class ErasureOfOwnStreams(ErasureCase):
    """Erasing rows of synrepl's own tables."""

    async def setUp(self) -> None:  # type: ignore[override]
        dsn = await MIGRATED.copy(self)
        database = PostgresDatabase(reactor, dsn, "prepare")
        streams = (EVENTS, BACKFILL, EVERYTHING, NOTES)
        await database.run("ensure_tables", lambda txn: ensure_tables(txn, streams))
        await database.close()
        self.begin(dsn, open_source_database(dsn, "tests"))

    def append(self, stream: str, *rows: dict[str, Any]) -> None:
        self.sql("SELECT synrepl.append(%s, %s)", stream, json.dumps(rows))

    def note(self, *texts: str) -> None:
        for text in texts:
            self.append("notes", {"text": text})

    def event(self, id_: str, stream: str = "events", **cells: Any) -> None:
        row = {"event_id": id_, "room_id": "!r", "type": "m", **cells}
        if stream == "events":
            row = {"kind": "ev", "rejected": False, "outlier": False, **row}
        self.append(stream, row)

    def relations(self, stream: str = "events") -> dict[str, str | None]:
        """The related event of each event, by ID."""
        return dict(self.cells(stream, "event_id", "relates_to"))  # type: ignore[arg-type]

    def test_cells_are_emptied_and_rows_stay(self) -> None:
        cells = {"whole": 1, "flag": True, "real": 0.5, "text": "x", "doc": [], "list": []}
        self.append("everything", {**cells, "text": ALICE, "list": [ALICE, BOB]})
        self.append("everything", {**cells, "doc": {"by": ALICE}}, {**cells, "text": BOB})
        self.append("everything", {**cells, "doc_or_null": [BOB], "list_or_null": [ALICE]})
        self.land()
        self.assertTrue(self.sql("SELECT synrepl.erase(%s)", ALICE))
        self.assertFalse(self.sql("SELECT synrepl.erase(%s)", ALICE))
        position = self.lake.table("everything").position
        done = self.erase()
        self.assertEqual((done.rows, done.subjects, done.redactions), (3, 1, 0))
        self.assertEqual(
            self.cells("everything", "text", "doc", "list", "doc_or_null", "list_or_null", "whole"),
            [
                (None, "[]", [None, BOB], None, None, 1),
                ("x", None, [], None, None, 1),
                (BOB, "[]", [], None, None, 1),
                ("x", "[]", [], '["' + BOB + '"]', [None], 1),
            ],
        )
        self.assertEqual(self.lake.table("everything").position, position)
        self.assertEqual(holding(self.lake, ALICE), [])

    def test_only_files_with_hits_are_rewritten(self) -> None:
        for text in (ALICE, "a", "b", ALICE, "c"):
            self.note(text)
            self.land()
        before = {file.name for file in self.lake.table("notes").files}
        self.sql("SELECT synrepl.erase(%s)", ALICE)
        seen: list[tuple[int, int]] = []
        self.assertEqual(
            self.erase(progress=lambda *at: seen.append(at)), ErasureReport(2, 2, 1, 0)
        )
        self.assertEqual(seen[-1], (5, 5))
        after = {file.name for file in self.lake.table("notes").files}
        self.assertEqual(len(before & after), 3)
        self.assertEqual(len(after), 5)
        self.assertEqual(self.erase(), ErasureReport(0, 0, 0, 0))

    def test_rows_landed_after_the_erasure_are_masked(self) -> None:
        self.note("a")
        self.land()
        self.sql("SELECT synrepl.erase(%s)", ALICE)
        self.erase()
        self.note(ALICE, "b")
        self.land()
        self.assertEqual(self.cells("notes", "text"), [("a",), (None,), ("b",)])
        self.assertEqual(holding(self.lake, ALICE), [])

    def test_files_replaced_by_compaction_are_removed(self) -> None:
        for text in (ALICE, "a", "b", "c"):
            self.note(text)
            self.land()
        with self.lake.write_lock():
            compact(self.spark, self.lake, "notes")
        self.assertGreater(len(holding(self.lake, ALICE)), 1)
        self.sql("SELECT synrepl.erase(%s)", ALICE)
        self.erase()
        self.assertEqual(holding(self.lake, ALICE), [])

    def test_files_by_room_stay_so(self) -> None:
        for number in range(4):
            self.event(f"${number}", relates_to="$root", room_id=f"!{number % 2}")
            self.land()
        target = 3 * self.lake.table("events").files[0].size
        with self.lake.write_lock():
            compact(self.spark, self.lake, "events", target=target, full=True)
        self.event("$9", redacts="$1", room_id="!1")
        self.land()
        self.assertEqual(self.erase().rows, 1)
        table = self.lake.table("events")
        large = max(table.files, key=lambda file: file.rows)
        rows = pq.read_table(table.path_of(large)).to_pylist()
        self.assertTrue(is_by_room(table.path_of(large)))
        self.assertEqual([row["event_id"] for row in rows], ["$0", "$2", "$1", "$3"])
        self.assertEqual([row["relates_to"] for row in rows], ["$root", "$root", None, "$root"])

    def test_a_subject_removed_and_added_again_is_erased_again(self) -> None:
        self.sql("SELECT synrepl.erase(%s)", ALICE)
        self.assertEqual(self.erase().subjects, 1)
        self.sql("DELETE FROM synrepl._erased_subjects")
        self.note(ALICE)
        self.land()
        self.assertEqual(self.cells("notes", "text"), [(ALICE,)])
        self.sql("SELECT synrepl.erase(%s)", ALICE)
        self.assertEqual(self.erase(), ErasureReport(1, 1, 1, 0))

    def test_a_death_at_any_step_is_completed_by_the_next_run(self) -> None:
        """Wherever the process dies, the next run completes the erasure."""

        def die(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        for number, (owner, name) in enumerate(
            [
                (StreamTable, "rewrite"),
                (StreamTable, "remove_unused"),
                (erasing, "write_erasure_record"),
            ]
        ):
            subject = f"@user{number}:example.org"
            self.note(subject, "other")
            self.append("events", {"kind": "state-all", "room_id": subject})
            self.land()
            self.assertNotEqual(holding(self.lake, subject), [])
            self.sql("SELECT synrepl.erase(%s)", subject)
            patched = self.patch(owner, name, die)
            self.assertRaises(KeyboardInterrupt, self.erase)
            patched.restore()
            self.assertEqual(self.erase().subjects, 1)
            self.assertEqual(holding(self.lake, subject), [])
            self.assertEqual(self.erase().subjects, 0)
        self.assertEqual(self.cells("notes", "text"), [(None,), ("other",)] * 3)

    def test_a_redaction_empties_cells_of_its_event(self) -> None:
        self.event("$1", relates_to="$root")
        self.event("$2", relates_to="$root", room_id="!s")
        self.event("$3", relates_to="$root", redacts="$other")
        self.land()
        self.event("$4", redacts="$1", relates_to="$root")
        self.event("$5", redacts="$2")  # in another room
        self.event("$6", redacts="$3")
        self.event("$7", redacts="$4", rejected=True)
        self.land()
        done = self.erase()
        self.assertEqual((done.rows, done.redactions), (2, 4))
        self.assertEqual(
            self.relations(),
            {"$1": None, "$2": "$root", "$3": None, "$4": "$root"}
            | dict.fromkeys(["$5", "$6", "$7"]),
        )
        self.assertEqual(self.cells("events", "redacts")[2:4], [("$other",), ("$1",)])
        self.assertEqual(self.erase(), ErasureReport(0, 0, 0, 0))

    def test_redactions_of_a_large_table_are_found_by_tasks(self) -> None:
        self.patch(redactions, "BYTES_HERE", -1)
        self.test_a_redaction_empties_cells_of_its_event()

    def test_tasks_read_files_with_many_redactions(self) -> None:
        self.patch(redacted_events, "MOST_HELD", 0)
        self.test_a_redaction_empties_cells_of_its_event()
        self.assertTrue([*redaction_folder(self.lake).iterdir()])

    def test_a_redaction_that_arrives_before_its_event_applies(self) -> None:
        self.event("$9", redacts="$1")
        self.land()
        self.assertEqual(self.erase().redactions, 1)
        self.event("$1", stream="backfill", relates_to="$root")
        self.event("$2", stream="backfill", relates_to="$root")
        self.land()
        self.assertEqual(self.relations("backfill"), {"$1": None, "$2": "$root"})

    def test_a_redaction_in_backfill_applies(self) -> None:
        self.event("$1", relates_to="$root")
        self.land()
        self.erase()
        self.event("$2", stream="backfill", redacts="$1")
        self.land()
        self.assertEqual(self.erase().redactions, 1)
        self.assertEqual(self.relations(), {"$1": None})

    def test_the_erasure_record_has_no_names(self) -> None:
        self.sql("SELECT synrepl.erase(%s)", ALICE)
        self.erase()
        path = self.lake.path / RECORD_FILE
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        self.assertNotIn(b"alice", path.read_bytes())
        other = Lake.open_or_create(Path(self.mktemp()), self.source.server, False)
        with other.write_lock():
            erase(self.spark, other, pending(self.spark, self.source, other))
        mine, others = (
            json.loads((each.path / RECORD_FILE).read_bytes()) for each in (self.lake, other)
        )
        self.assertNotEqual(mine["subjects"], others["subjects"])
        for damage in (b"{", b'{"version": 1, "key": "x"}', b'{"version": 2, "key": ""}'):
            path.write_bytes(damage)
            with self.assertRaises(ErasureRecordUnreadable) as caught:
                self.erase()
            self.assertIn(str(path), str(caught.exception))
        path.unlink()
        self.assertEqual(self.erase().subjects, 1)

    def test_a_database_without_a_list_erases_nothing(self) -> None:
        self.note(ALICE)
        self.sql("DROP TABLE synrepl._erased_subjects")
        self.land()
        self.assertEqual(self.erase(), ErasureReport(0, 0, 0, 0))

    def test_invalid_subjects_are_refused_by_the_database(self) -> None:
        for subject in ("", "x" * 1001, None):
            self.assertRaises(
                psycopg2.IntegrityError, self.sql, "SELECT synrepl.erase(%s)", subject
            )


class ErasureOfSynapseStreams(ErasureCase):
    """Erasing rows of a real Synapse's tables."""

    USER = "@u3_4:localhost:18701"

    async def setUp(self) -> None:  # type: ignore[override]
        dsn = await foreign_database("1.163.2", self)
        self.begin(dsn, SynapseDatabase(BlockingDatabase(dsn, "tests"), settle_s=0.0))

    def test_nothing_of_a_user_is_left_in_any_file(self) -> None:
        self.sql(
            "UPDATE receipts_linearized SET data = '{' || %s WHERE stream_id ="
            " (SELECT max(stream_id) FROM receipts_linearized)",
            self.USER,
        )
        self.land()
        for stream in self.lake.streams:
            DeltaTable(self.lake.table(stream).path).create_checkpoint()
        quarantined = self.lake.quarantine("receipts")
        assert quarantined is not None
        before = holding(self.lake, self.USER)
        self.assertTrue(any(quarantined.path in path.parents for path in before))
        self.assertGreater(len({path.parent for path in before}), 5)
        rows = self.heads()
        self.sql("INSERT INTO erased_users VALUES (%s)", self.USER)
        done = self.erase()
        self.assertGreater(done.rows, 100)
        self.assertEqual(holding(self.lake, self.USER), [])
        self.assertEqual(self.heads(), rows)
        self.assertNotEqual(holding(self.lake, "@u3_0:localhost:18701"), [])

    def heads(self) -> dict[str, list[tuple[Any, ...]]]:
        """All rows, without the cells that may be erased."""
        return {stream: self.rows(stream, "writer") for stream in self.lake.streams}

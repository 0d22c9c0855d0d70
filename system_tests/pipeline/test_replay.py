"""Replaying a lake to another database, with real Spark and PostgreSQL."""

from __future__ import annotations

import json
import signal
from functools import partial
from typing import Any

import psycopg2
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from twisted.internet.defer import Deferred

from synrepl.pipeline.lake.check.check import EVERYTHING, Extent, check
from synrepl.pipeline.lake.check.report import CheckReport
from synrepl.pipeline.lake.erase.erase import erase
from synrepl.pipeline.lake.erase.mask import mask
from synrepl.pipeline.lake.erase.pending import pending
from synrepl.pipeline.lake.land.landing import DatabaseSetBack, Landing
from synrepl.pipeline.lake.replay.copy_database import NotACopy
from synrepl.pipeline.lake.replay.replay import BeyondTheLake, NotTheSame, ReplayReport, replay
from synrepl.positions.vector import PositionVector
from synrepl.streams.columns import columns
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.testing.postgres import fresh_database
from system_tests.pipeline.lake_case import LakeCase
from system_tests.pipeline.spark_fixture import run_child
from tests.storage.announcing_process import AnnouncingProcess
from tests.storage.foreign_databases import foreign_database
from tests.storage.postgres import PREPARED, Process, prepare
from tests.storage.samples import TAMPERING

#: Streams that share a sequence with another one.
SHARED = {"account_data", "tag_account_data", "device_lists", "user_signature"}

#: Replays in two batches, and dies after the first.
KILLED = """
    import os, signal
    from pathlib import Path
    from synrepl.pipeline.lake.lake import Lake
    from synrepl.pipeline.lake.replay.replay import replay
    from system_tests.pipeline.spark_fixture import LOCAL
    from synrepl.pipeline.session.session import open_session

    def die(stream, rows, of):
        os.killpg(0, signal.SIGKILL)

    with open_session(LOCAL) as spark:
        lake = Lake(Path(os.environ["LAKE"]))
        replay(spark, lake, os.environ["COPY"], batch_rows=25, progress=die)
"""


class Replays(LakeCase):
    """Replays from one database by way of a lake to another."""

    def rows_of(self, dsn: str, stream: str) -> list[Any]:
        connection = psycopg2.connect(dsn)
        try:
            with connection.cursor() as cursor:
                cursor.execute(
                    f"SELECT t::text FROM synrepl.{stream} AS t ORDER BY stream_id, row_no"
                )
                return cursor.fetchall()
        finally:
            connection.close()

    def replayed(
        self, dsn: str, extent: Extent = EVERYTHING, batch_rows: int = 25
    ) -> list[ReplayReport]:
        return replay(self.spark, self.lake, dsn, extent, batch_rows=batch_rows)

    def test_writes_back_what_an_earlier_copy_of_the_database_lacks(self) -> None:
        self.notes(10)
        self.sql("SELECT setval('synrepl._notes_seq', 12)")
        self.land("notes", PositionVector({"odd": 12, "even": 12}, 12))
        before = self.rows_of(self.dsn, "notes")
        self.sql(f"{TAMPERING}; DELETE FROM synrepl.notes WHERE stream_id > 4")
        self.sql("SELECT setval('synrepl._notes_seq', 4)")
        landing = Landing(self.spark, self.lake, self.source, self.dsn)

        def landed() -> list[int]:
            with self.lake.write_lock():
                return [each.rows["notes"] for each in landing.rounds(["notes"])]

        self.assertRaises(DatabaseSetBack, landed)
        (report,) = self.replayed(self.dsn)
        self.assertEqual((report.present, report.rows), (4, 6))
        self.assertEqual(self.rows_of(self.dsn, "notes"), before)
        self.assertEqual(self.sql("""SELECT synrepl.append('notes', '[{"text": "a"}]')"""), 13)
        self.assertEqual(landed(), [1])

    def compared(self, dsn: str, extent: Extent = EVERYTHING) -> CheckReport:
        """The lake and a copy."""
        return check(self.spark, self.lake, self.source_of(dsn), dsn, extent, copy=True)

    async def test_replaying_again_writes_nothing(self) -> None:
        self.notes(30, rows=2)
        # IDs without rows
        self.sql(f"{TAMPERING}; DELETE FROM synrepl.notes WHERE stream_id IN (7, 30)")
        self.sql(
            "INSERT INTO synrepl.backfill SELECT (r).* FROM (SELECT jsonb_populate_record("
            "NULL::synrepl.backfill, jsonb_build_object('stream_id', -n, 'row_no', 0, 'writer', 'w',"
            " 'event_id', 'e', 'room_id', 'r', 'type', 't')) AS r FROM generate_series(1, 5) n) AS rs"
        )
        self.sql(
            "INSERT INTO synrepl.everything (stream_id, row_no, writer, text, whole, flag, real, doc,"
            " list, text_or_null) VALUES (4, 0, 'w', E'a\\tb\\\\', 9223372036854775807, true, -0.0,"
            """ '{"a": [1, 2.50]}', '{"","b \\"c"}', NULL)"""
        )
        self.land("notes", PositionVector({"even": 30}, 29), files=3)
        self.land("backfill", PositionVector({}, 5))
        self.land("everything", PositionVector({}, 4))
        copy = await fresh_database(self)
        self.assertEqual(
            self.replayed(copy),
            [
                ReplayReport("backfill", 0, 5, 5, 0),
                ReplayReport("everything", 0, 4, 1, 0),
                ReplayReport("notes", 0, 29, 56, 0),
            ],
        )
        for stream in ("notes", "backfill", "everything"):
            self.assertEqual(self.rows_of(copy, stream), self.rows_of(self.dsn, stream), stream)
        self.assertTrue(self.compared(copy).equal)
        again = self.replayed(copy, Extent(["notes"]), batch_rows=13)
        self.assertEqual(again, [ReplayReport("notes", 0, 29, 0, 56)])
        # A master can start on the copy with declarations that say more than the lake does.
        await prepare(copy)

    async def test_a_later_replay_continues_and_differing_rows_are_refused(self) -> None:
        self.notes(40)
        self.land("notes", PositionVector({}, 40), files=2)
        copy = await fresh_database(self)
        self.assertEqual(
            self.replayed(copy, Extent(upto=15)), [ReplayReport("notes", 0, 15, 15, 0)]
        )
        self.assertEqual(self.replayed(copy), [ReplayReport("notes", 0, 40, 25, 15)])
        self.assertRaises(BeyondTheLake, self.replayed, copy, Extent(upto=41))
        self.sql_of(
            copy, f"{TAMPERING}; UPDATE synrepl.notes SET text = 'other' WHERE stream_id = 3"
        )
        error = self.assertRaises(NotTheSame, self.replayed, copy)
        self.assertIn("1 changed", str(error))
        self.assertIn("differs from the lake below token 40", str(error))
        synapse = await foreign_database("1.163.2", self)
        self.assertRaises(NotACopy, self.replayed, synapse)

    def sql_of(self, dsn: str, statement: str) -> None:
        connection = psycopg2.connect(dsn)
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
        connection.close()

    async def test_reports_rows_above_the_linear_position(self) -> None:
        self.notes(20)
        self.land("notes", PositionVector({"even": 20, "odd": 7}, 7))
        copy = await fresh_database(self)
        self.assertEqual(self.replayed(copy), [ReplayReport("notes", 0, 7, 7, 0, remaining=7)])
        self.assertEqual(self.replayed(copy, Extent(upto=5)), [ReplayReport("notes", 0, 5, 0, 5)])

    async def test_a_killed_replay_is_completed_by_the_next(self) -> None:
        self.notes(50)
        self.land("notes", PositionVector({}, 50), files=2)
        copy = await fresh_database(self)
        ended = run_child(KILLED, LAKE=str(self.lake.path), COPY=copy)
        self.assertEqual(ended.status, -signal.SIGKILL, ended.errors)
        self.assertEqual(len(self.rows_of(copy, "notes")), 25)
        self.assertEqual(self.replayed(copy), [ReplayReport("notes", 0, 50, 25, 25)])
        self.assertEqual(self.rows_of(copy, "notes"), self.rows_of(self.dsn, "notes"))

    async def test_a_damaged_file_of_the_lake_records_nothing(self) -> None:
        self.notes(50)
        table = self.land("notes", PositionVector({}, 50), files=2)
        path = table.path_of(table.files[0])
        whole = path.read_bytes()
        path.write_bytes(bytes(len(whole)))
        # With this setting Spark skips unreadable files silently.
        self.spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
        self.addCleanup(self.spark.conf.unset, "spark.sql.files.ignoreCorruptFiles")
        copy = await PREPARED.copy(self)
        self.assertRaises((PySparkException, Py4JError), self.replayed, copy)
        self.assertEqual(self.rows_of(copy, "notes"), [])
        self.assertEqual(self.given(copy)[1], 0)
        path.write_bytes(whole)
        self.assertEqual(self.replayed(copy), [ReplayReport("notes", 0, 50, 50, 0)])

    async def test_tokens_of_the_lake_are_not_allocated_again(self) -> None:
        self.notes(25)
        self.land("notes", PositionVector({"odd": 45, "even": 40}, 40))
        copy = await fresh_database(self)
        self.assertEqual(self.replayed(copy), [ReplayReport("notes", 0, 40, 25, 0)])
        self.assertEqual(self.given(copy), (40, 40, {"even": 40, "odd": 40, "sql": 0}))
        self.notes(5, first=46)
        self.land("notes", PositionVector({"odd": 60, "even": 60}, 60))
        self.assertEqual(self.replayed(copy), [ReplayReport("notes", 0, 60, 5, 25)])
        self.assertEqual(self.replayed(copy), [ReplayReport("notes", 0, 60, 0, 30)])
        self.assertEqual(self.given(copy), (60, 60, {"even": 60, "odd": 60, "sql": 0}))
        self.sql_of(copy, "SELECT synrepl.append('notes', '[]')")
        self.assertEqual(self.given(copy)[0], 61)

    def given(self, dsn: str) -> tuple[int, int, dict[str, int]]:
        """The last token of the sequence of ``notes``, and the recorded positions."""
        connection = psycopg2.connect(dsn)
        try:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT (SELECT last_value FROM synrepl._notes_seq), position,"
                    " (SELECT json_object_agg(writer, position) FROM synrepl._writers"
                    "  WHERE stream = 'notes')"
                    " FROM synrepl._streams WHERE stream = 'notes'"
                )
                return cursor.fetchone()  # type: ignore[return-value]
        finally:
            connection.close()

    async def test_every_stream_of_the_catalogue_is_replayed(self) -> None:
        streams = [stream for stream in SYNAPSE_STREAMS if not stream.in_memory]
        await self.process("tables").store.prepare(streams)
        self.source.refresh()
        values = {"bigint": 7, "boolean": True, "double": 0.5, "json": {"a": 1}, "text[]": ["a"]}
        shared: dict[str, int] = {}
        connection = self.connect()
        for stream in streams:
            # Streams that share a sequence alternate.
            first = shared.setdefault(stream.numbered_with or stream.name, 0) + 1
            shared[stream.numbered_with or stream.name] = first
            for token in range(first, 9, 2):
                row = {each.name: values.get(each.type, "t") for each in columns(stream)}
                row |= {"stream_id": stream.stream_id(token), "row_no": 0, "writer": "w"}
                if stream.tagged:
                    row["kind"] = next(iter(stream.kinds))
                self.sql(
                    f"INSERT INTO synrepl.{stream.name}"
                    f" SELECT * FROM jsonb_populate_record(NULL::synrepl.{stream.name}, %s)",
                    json.dumps(row),
                    on=connection,
                )
            self.land(stream.name, PositionVector({"w": 9}, 9))
        self.assertEqual(max(shared.values()), 2)
        for order in (1, -1):
            copy = await fresh_database(self)
            names = [stream.name for stream in streams if order == 1 or stream.name in SHARED]
            done = self.replayed(copy, Extent(names[::order], range_rows=100), batch_rows=100)
            self.assertEqual([each.stream for each in done if each.rows != 4], [])
            for name in names:
                self.assertEqual(self.rows_of(copy, name), self.rows_of(self.dsn, name), name)

    async def test_erased_cells_are_empty_in_the_copy(self) -> None:
        self.sql(
            "INSERT INTO synrepl.everything (stream_id, row_no, writer, text, whole, flag, real, doc,"
            " list, text_or_null, doc_or_null, list_or_null) VALUES"
            " (1, 0, 'w', '@a:x', 1, true, 0.5, '[\"@a:x\"]', '{@a:x,b}', '@a:x', '\"@a:x\"', '{@a:x}'),"
            " (2, 0, 'w', 'text', 1, true, 0.5, '[]', '{}', NULL, NULL, NULL)"
        )
        self.land("everything", PositionVector({}, 2))
        self.sql("SELECT synrepl.erase('@a:x')")
        with self.lake.write_lock():
            todo = pending(self.spark, self.source, self.lake)
            found = erase(self.spark, self.lake, todo)
        self.assertEqual(found.rows, 1)
        copy = await PREPARED.copy(self)
        [done] = self.replayed(copy)
        self.assertEqual(done, ReplayReport("everything", 0, 2, 2, 0, filled=4))
        first, second = self.rows_of(copy, "everything")
        self.assertEqual(first, ('(1,0,w,"",1,t,0.5,{},"{"""",b}",,,,,,"{""""}")',))
        self.assertEqual(second, self.rows_of(self.dsn, "everything")[1])
        self.assertTrue(self.compared(copy).equal)
        # A copy from before the erasure, which is masked only now.
        masked = partial(mask, erasures=todo.known)
        self.assertTrue(self.checked(copy=True, mask=masked).equal)
        self.assertEqual(self.replayed(copy), [ReplayReport("everything", 0, 2, 0, 2)])

    async def test_a_master_and_its_followers_see_the_facts(self) -> None:
        self.notes(30, rows=2)
        self.land("notes", PositionVector({}, 30))
        copy = await PREPARED.copy(self)
        process = Process(copy, "master")
        self.addCleanup(lambda: Deferred.fromCoroutine(process.close()))
        announcing = AnnouncingProcess(self, process, "master", 0.05)
        await announcing.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(announcing.stop()))
        self.replayed(copy)
        listener = announcing.listener
        await self.until(lambda: listener.linear >= 30)
        announced = [(fact.token, fact.writer, len(fact.rows)) for fact in listener.linear_facts]
        self.assertEqual(announced, [(n, "odd" if n % 2 else "even", 2) for n in range(1, 31)])

"""Tables from declarations, and declarations that change, on a real database."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from twisted.internet.defer import Deferred, gatherResults

from synrepl.core.tokens import Range
from synrepl.storage.database import Transaction
from synrepl.storage.staging.staging import (
    StagedAttempt,
    StagingJob,
    append_staged,
    ensure_staging,
    stage,
)
from synrepl.storage.store import BadValue, Draft
from synrepl.storage.tables import DeclarationChanged
from synrepl.streams.columns import columns
from synrepl.streams.declared import MAX_COLUMNS, RESERVED_STREAMS, BadDeclaration, declare
from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.synapse import SYNAPSE_STREAMS
from tests.storage.postgres import PostgresCase, Process
from tests.storage.samples import FEW

OLD = declare("jobs", {"job": "text", "size": "bigint"})
WIDER = declare("jobs", {"job": "text", "size": "bigint", "note": "text?", "tags": "text[]?"})
LOOSER = declare("jobs", {"job": "text", "size": "bigint?"})


class NamesInPostgres(PostgresCase):
    """Names of columns and streams, against names that the database uses itself."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.attempts = count(1)

    async def test_a_column_may_have_every_name_that_is_not_refused_when_it_is_declared(
        self,
    ) -> None:
        with self.connect().cursor() as cursor:
            cursor.execute("SELECT DISTINCT attname FROM pg_attribute WHERE attnum < 0")
            system = {name for (name,) in cursor.fetchall()}
            cursor.execute("SELECT word FROM pg_get_keywords() WHERE word ~ '^[a-z][a-z0-9_]*$'")
            keywords = [word for (word,) in cursor.fetchall()]
        self.assertLessEqual({"ctid", "xmin", "tableoid"}, system)
        for name in system:
            with self.assertRaisesRegex(BadDeclaration, "system column"):
                declare("s", {name: "text"})
        words = [*keywords, "attempt", "ordinal", "oid", "rowid"]
        for at in range(0, len(words), MAX_COLUMNS):
            some = words[at : at + MAX_COLUMNS]
            stream = declare(f"words_{at}", dict.fromkeys(some, "text"))
            process = self.process(f"p{at}")
            await process.store.prepare([stream])
            await self.append(process, stream, some)
            staged = await process.database.run("stage", self.stage(stream, some))
            job = StagingJob(stream.name, "sql", "job")
            await process.database.run(
                "move", lambda txn, j=job, s=staged, c=some: append_staged(txn, j, [s], c)
            )
            page = await process.store.page(stream, Range(0, 9), None, 9)
            row = stream.kinds[UNTAGGED](*some)
            self.assertEqual([fact.rows for fact in page.facts], [(row,), (row,)])

    async def append(self, process: Process, stream: Stream, cells: list[str]) -> None:
        lease = await process.store.open_writer("w1", [stream])
        await lease.append(stream, [Draft([[stream.kinds[UNTAGGED](*cells)]])], 0)
        await lease.close()

    def stage(self, stream: Stream, cells: list[str]) -> Callable[[Transaction], StagedAttempt]:
        def work(txn: Transaction) -> StagedAttempt:
            ensure_staging(txn, stream.name, columns(stream))
            attempt = next(self.attempts)
            row = "\t".join([str(attempt), "0", *cells]) + "\n"
            names = [column.name for column in columns(stream)]
            return stage(txn, stream.name, "job", attempt, names, [row.encode()], [])

        return work

    async def test_a_stream_may_have_every_name_that_is_not_refused_when_it_is_declared(
        self,
    ) -> None:
        with self.connect().cursor() as cursor:
            cursor.execute(
                "SELECT DISTINCT substring(relname FROM '^_([a-z].*?)(?:_(?:pkey|seq|staged))?$')"
                " FROM pg_class WHERE relnamespace = 'synrepl'::regnamespace AND relname LIKE '\\_%'"
            )
            bookkeeping = {name for (name,) in cursor.fetchall()}
        self.assertLessEqual({"streams", "writers", "writers_number", "server"}, bookkeeping)
        process = self.process("p")
        refused = set()
        for name in sorted(bookkeeping - {stream.name for stream in FEW}):
            try:
                stream = declare(name, {"text": "text"})
            except BadDeclaration:
                refused.add(name)
                continue
            await process.store.prepare([stream])
            await self.append(process, stream, ["x"])
            await process.database.run("stage", self.stage(stream, ["x"]))
        self.assertNotIn("server", refused)
        self.assertEqual(refused, RESERVED_STREAMS - {"all", "batch", "now"})


class StreamTables(PostgresCase):
    """Changed declarations of a stream ``jobs`` that already has rows."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.here = self.process("here")
        await self.here.store.prepare([OLD])
        await self.append(self.here, OLD, "old", 1)

    async def append(self, process: Process, stream: Stream, *cells: object) -> None:
        lease = await process.store.open_writer("w1", [stream])
        try:
            await lease.append(stream, [Draft([[stream.kinds[UNTAGGED](*cells)]])], 0)
        finally:
            await lease.close()

    async def rows(self, stream: Stream) -> list[object]:
        store = self.process("reader").store
        page = await store.page(stream, Range(0, 100), None, 100)
        return [row for fact in page.facts for row in fact.rows]

    async def test_adds_new_columns(self) -> None:
        there = self.process("there")
        await there.store.prepare([WIDER])
        await self.append(there, WIDER, "new", 2, "a note", ["a", "b"])
        await self.append(self.here, OLD, "old again", 3)  # this process has not been restarted yet
        wide, narrow = WIDER.kinds[UNTAGGED], OLD.kinds[UNTAGGED]
        self.assertEqual(
            await self.rows(WIDER),
            [
                wide("old", 1, None, None),
                wide("new", 2, "a note", ["a", "b"]),
                wide("old again", 3, None, None),
            ],
        )
        self.assertEqual(
            await self.rows(OLD), [narrow("old", 1), narrow("new", 2), narrow("old again", 3)]
        )

    async def test_a_column_becomes_nullable(self) -> None:
        there = self.process("there")
        with self.assertRaises(BadValue):
            await self.append(there, LOOSER, "new", None)
        await there.store.prepare([LOOSER])
        await self.append(there, LOOSER, "new", None)
        loose = LOOSER.kinds[UNTAGGED]
        self.assertEqual(await self.rows(LOOSER), [loose("old", 1), loose("new", None)])

    async def test_refuses_changes_that_the_table_does_not_allow(self) -> None:
        await self.here.store.prepare([LOOSER])
        for declared, word in (
            ({"job": "text", "size": "bigint?", "note": "text"}, "'note' that is not nullable"),
            ({"job": "text", "size": "text?"}, "'size' as text (the table has bigint)"),
            ({"job": "text"}, "no column 'size'"),
            ({"job": "text", "size": "bigint"}, "'size' as not nullable"),
            ({"size": "bigint?", "job": "text"}, "in the order size, job"),
            ({"job": "text", "note": "text?", "size": "bigint?"}, "in the order job, note"),
        ):
            with self.assertRaises(DeclarationChanged) as caught:
                await self.here.store.prepare([declare("jobs", declared)])
            self.assertIn("'jobs'", str(caught.exception))
            self.assertIn(word, str(caught.exception))
        down = Stream("jobs", LOOSER.kinds, counts_down=True)
        with self.assertRaises(DeclarationChanged) as caught:
            await self.here.store.prepare([down])
        self.assertIn("the other direction", str(caught.exception))
        self.assertEqual(len(await self.rows(LOOSER)), 1)

    async def test_a_refused_change_leaves_other_streams_as_they_were(self) -> None:
        other = declare("other", {"a": "text"})
        with self.assertRaises(DeclarationChanged):
            await self.here.store.prepare([other, declare("jobs", {"job": "text"})])
        self.assertIsNone(self.sql("SELECT to_regclass('synrepl.other')"))

    async def test_preparing_again_changes_nothing(self) -> None:
        streams = [stream for stream in SYNAPSE_STREAMS if not stream.in_memory]
        await self.here.store.prepare(SYNAPSE_STREAMS)
        count = "SELECT count(*) FROM synrepl._streams"
        before = self.sql(count)
        await self.process("there").store.prepare(SYNAPSE_STREAMS)
        self.assertEqual(self.sql(count), before)
        self.assertIsNone(self.sql("SELECT to_regclass('synrepl.typing')"))
        self.assertIsNotNone(self.sql(f"SELECT to_regclass('synrepl.{streams[0].name}')"))

    async def test_several_processes_prepare_at_once(self) -> None:
        stores = [self.process(f"p{n}").store for n in range(4)]
        await gatherResults(
            [Deferred.fromCoroutine(s.prepare([WIDER, *SYNAPSE_STREAMS])) for s in stores]
        )
        self.assertEqual(await self.rows(WIDER), [WIDER.kinds[UNTAGGED]("old", 1, None, None)])

"""Tables from declarations, and declarations that change, on a real database."""

from __future__ import annotations

from twisted.internet.defer import Deferred, gatherResults

from synrepl.core.tokens import Range
from synrepl.storage.store import BadValue, Draft
from synrepl.storage.tables import DeclarationChanged
from synrepl.streams.declared import declare
from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.synapse import SYNAPSE_STREAMS
from tests.storage.postgres import PostgresCase, Process

OLD = declare("jobs", {"job": "text", "size": "bigint"})
WIDER = declare("jobs", {"job": "text", "size": "bigint", "note": "text?", "tags": "text[]?"})
LOOSER = declare("jobs", {"job": "text", "size": "bigint?"})


class Tables(PostgresCase):
    """A stream ``jobs`` that has rows already."""

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

    async def test_widening(self) -> None:
        there = self.process("there")
        await there.store.prepare([WIDER])
        await self.append(there, WIDER, "new", 2, "a note", ["a", "b"])
        await self.append(self.here, OLD, "old again", 3)  # that process has not restarted yet
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

    async def test_changes_that_the_table_does_not_allow(self) -> None:
        await self.here.store.prepare([LOOSER])
        for columns, word in (
            ({"job": "text", "size": "bigint?", "note": "text"}, "'note' that is not nullable"),
            ({"job": "text", "size": "text?"}, "'size' as text (the table has bigint)"),
            ({"job": "text"}, "no column 'size'"),
            ({"job": "text", "size": "bigint"}, "'size' as not nullable"),
            ({"size": "bigint?", "job": "text"}, "in the order size, job"),
            ({"job": "text", "note": "text?", "size": "bigint?"}, "in the order job, note"),
        ):
            with self.assertRaises(DeclarationChanged) as caught:
                await self.here.store.prepare([declare("jobs", columns)])
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

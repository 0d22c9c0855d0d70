"""Appending by plain SQL, with synrepl.append(), on a real database."""

from __future__ import annotations

import json
from typing import Any

import psycopg2
from psycopg2 import extensions
from twisted.internet.defer import Deferred

from synrepl.core.tokens import Range
from synrepl.storage.store import Draft, WriterTaken
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.synapse.backfill import BACKFILL, BackfillRow
from synrepl.streams.synapse.events import EVENTS
from tests.storage.announcing_process import AnnouncingProcess
from tests.storage.postgres import PostgresCase
from tests.storage.samples import EVERYTHING, NOTES, note, rows_of
from tests.storage.skipping_scheduler import SkippingScheduler


class PlainSql(PostgresCase):
    """Appends over a plain SQL connection."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.connection = self.connect()
        self.store = self.process("reader", SkippingScheduler()).store

    def append(self, *rows: object, stream: str = "notes", writer: str | None = None) -> int:
        as_writer = "" if writer is None else ", %s"
        id_: int = self.sql(
            f"SELECT synrepl.append(%s, %s{as_writer})",
            stream,
            json.dumps(rows),
            *(() if writer is None else (writer,)),
            on=self.connection,
        )
        return id_

    def refused(self, call: Any, *words: str) -> None:
        """Check that a call is refused with a helpful message."""
        with self.assertRaises(psycopg2.Error) as caught:
            call()
        for word in words:
            self.assertIn(word, str(caught.exception))

    async def facts(self, stream: Stream = NOTES) -> list[Fact]:
        return list((await self.store.page(stream, Range(0, 10**6), None, 10**6)).facts)

    # -- accepted -----------------------------------------------------------------------

    async def test_plain_sql_appends_rows_as_facts(self) -> None:
        first = self.append({"text": "a"}, {"text": "b\t\\", "n": 2**63 - 1})
        second = self.append({"text": "c", "n": None})
        empty = self.append()
        self.assertTrue(first < second < empty)
        self.assertEqual(
            await self.facts(),
            [
                Fact(first, "sql", (note("a"), note("b\t\\", 2**63 - 1))),
                Fact(second, "sql", (note("c"),)),
            ],
        )

    async def test_appends_rows_of_every_type(self) -> None:
        rows = [row for row in rows_of(EVERYTHING) if row.doc is not None]  # type: ignore[attr-defined]
        fields = EVERYTHING.kinds[""].__struct_fields__
        objects = [{field: getattr(row, field) for field in fields} for row in rows]
        token = self.append(*objects, stream="everything")
        self.assertEqual(await self.facts(EVERYTHING), [Fact(token, "sql", tuple(rows))])

    async def test_appends_to_a_stream_that_counts_down(self) -> None:
        row = {"event_id": "$e", "room_id": "!r", "type": "m"}
        self.assertEqual(self.append(row, stream="backfill"), -1)
        self.assertEqual(self.append(row, stream="backfill"), -2)
        expected = BackfillRow("$e", "!r", "m", None, None, None)
        self.assertEqual(
            [(f.token, f.rows) for f in await self.facts(BACKFILL)],
            [(1, (expected,)), (2, (expected,))],
        )

    async def test_appends_rows_with_kinds(self) -> None:
        await self.store.prepare([EVENTS])
        row = {"kind": "state-all", "room_id": "!r"}
        token = self.append(row, stream="events")
        (fact,) = await self.facts(EVENTS)
        self.assertEqual((fact.token, type(fact.rows[0])), (token, EVENTS.kinds["state-all"]))
        self.refused(lambda: self.append({**row, "kind": "new"}, stream="events"), "_events_kind")

    async def test_repairs_a_sequence_that_is_behind(self) -> None:
        tokens = [self.append({"text": str(n)}) for n in range(40)]
        self.sql("SELECT setval('synrepl._notes_seq', 8)")
        self.assertEqual(self.append({"text": "again"}), tokens[-1] + 1)
        await self.store.record_positions(NOTES, 1000, {"sql": 2000})
        self.assertEqual(self.append({"text": "again"}), 2001)

    async def test_appends_as_a_separate_writer(self) -> None:
        self.sql("SELECT synrepl.add_writer('notes', 'billing-1')")
        self.sql("SELECT synrepl.add_writer('notes', 'billing-1')")
        token = self.append({"text": "a"}, writer="billing-1")
        self.assertEqual(await self.facts(), [Fact(token, "billing-1", (note("a"),))])

    # -- refused ------------------------------------------------------------------------

    async def test_refuses_unknown_names(self) -> None:
        for stream, words in (
            ("note", ('there is no stream "note"', 'did you mean "notes"?', "declared")),
            ("notse", ('there is no stream "notse"', 'did you mean "notes"?')),
            ("back_fill", ('did you mean "backfill"?',)),
            ("x" * 1000, ("there is no stream", "declared")),
            ("", ('there is no stream ""',)),
        ):
            self.refused(lambda stream=stream: self.append({"text": "a"}, stream=stream), *words)
        with self.assertRaises(psycopg2.Error) as caught:
            self.append({"text": "a"}, stream="payments")
        self.assertNotIn("did you mean", str(caught.exception))
        self.refused(
            lambda: self.append({"text": "a"}, writer="who"), '"notes"', '"who"', "add_writer"
        )
        self.refused(lambda: self.append({"txet": "a"}), '"notes"', 'no column "txet"')
        for name in ("stream_id", "row_no", "writer"):
            self.refused(lambda name=name: self.append({"text": "a", name: 1}), f'"{name}"')
        for function in ("add_writer", "take_place"):
            self.refused(
                lambda function=function: self.sql(f"SELECT synrepl.{function}('note', 'w')"),
                'no stream "note"',
                '"notes"',
            )
        for name in ("", "a b", "-x", "x" * 64):
            self.refused(
                lambda name=name: self.sql("SELECT synrepl.add_writer('notes', %s)", name),
                "_writers_name",
            )
        self.assertEqual(await self.facts(), [])

    async def test_refuses_what_are_not_rows(self) -> None:
        for rows in ('{"text": "a"}', '["a"]', "[[]]", "5", "null", None):
            self.refused(
                lambda rows=rows: self.sql("SELECT synrepl.append('notes', %s)", rows),
                "rows must be a JSON array of objects",
            )
        self.refused(lambda: self.append({"n": 1}), '"text"', "null")
        self.refused(lambda: self.append({"text": "a", "n": 2**63}), "out of range")
        self.refused(lambda: self.append({"text": "a", "n": "many"}), '"many"')
        self.assertEqual(await self.facts(), [])

    async def test_refuses_the_name_of_a_process(self) -> None:
        process = self.process("the process")
        lease = await process.store.open_writer("w1", [NOTES])
        self.refused(lambda: self.append({"text": "a"}, writer="w1"), '"w1"', "the process")
        await lease.close()
        self.append({"text": "a"}, writer="w1")

    async def test_refuses_the_name_of_a_process_newer_than_the_snapshot(self) -> None:
        self.sql("SELECT synrepl.add_writer('notes', 'w1')")
        self.connection.set_session(isolation_level="REPEATABLE READ", autocommit=False)
        self.sql("SELECT count(*) FROM synrepl._writers", on=self.connection)
        await self.process("the process").store.open_writer("w1", [NOTES])
        self.refused(lambda: self.append({"text": "a"}, writer="w1"), '"w1"', "process")
        self.connection.rollback()

    async def test_no_process_takes_a_name_that_sql_is_using(self) -> None:
        self.sql("SELECT synrepl.add_writer('notes', 'w1')")
        self.connection.autocommit = False
        self.append({"text": "a"}, writer="w1")
        with self.assertRaises(WriterTaken):
            await self.store.open_writer("w1", [NOTES])
        self.connection.commit()
        await self.store.open_writer("w1", [NOTES])

    async def test_waits_for_a_writer_that_is_not_committed_yet(self) -> None:
        self.connection.autocommit = False
        self.sql("SELECT synrepl.add_writer('notes', 'w1')", on=self.connection)
        self.refused(
            lambda: self.append({"text": "a"}, writer="w1"), "committed first", "add_writer"
        )
        self.connection.rollback()
        self.sql("SELECT synrepl.add_writer('notes', 'w1')", on=self.connection)
        self.connection.commit()
        self.append({"text": "a"}, writer="w1")
        self.connection.commit()

    # -- visibility ---------------------------------------------------------------------

    async def test_a_long_transaction_holds_only_the_linear_position(self) -> None:
        announcing = AnnouncingProcess(self, self.process("master"), "master", poll_s=0.05)
        await announcing.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(announcing.stop()))
        listener = announcing.listener
        self.connection.autocommit = False
        for end in (self.connection.commit, self.connection.rollback):
            held = self.append({"text": "long"})
            (above,) = (await announcing.writer.append(NOTES, [[note("short")]])).tokens
            self.assertGreater(above, held)
            self.assertEqual(listener.positions["master"], above)
            await self.until(lambda: announcing.sees("sql"))
            self.assertLess(listener.linear, held)
            end()
            await self.until(lambda above=above: listener.linear >= above)  # type: ignore[misc]
        self.assertEqual(listener.linear_facts, await self.facts())
        self.assertEqual(
            [(f.writer, f.rows) for f in listener.linear_facts],
            [("sql", (note("long"),)), ("master", (note("short"),)), ("master", (note("short"),))],
        )

    async def test_commits_are_notified(self) -> None:
        listener = self.connect()
        self.sql("LISTEN synrepl", on=listener)
        process = self.process("writer")
        lease = await process.store.open_writer("w1", [NOTES])
        (one,) = await lease.reserve(NOTES, 1, 0)
        await self.notifications(listener)

        async def assert_notified(step: Any) -> None:
            await step
            self.assertEqual(await self.notifications(listener), ["notes"])

        await assert_notified(lease.append(NOTES, [Draft([[note("a")]])], 0))
        await assert_notified(lease.append(NOTES, [Draft([[note("a")]] * 3)], 0))
        await assert_notified(lease.append(NOTES, [Draft([[note("a")]] * 100)], 0))
        await assert_notified(lease.write(NOTES, [Fact(one, "w1", (note("b"),))]))
        self.append({"text": "sql"})
        self.assertEqual(await self.notifications(listener), ["notes"])

    async def notifications(self, listener: extensions.connection) -> list[str]:
        """The notifications so far."""
        self.sql("SELECT 1", on=listener)
        payloads = [notice.payload for notice in listener.notifies]
        listener.notifies.clear()
        return payloads

"""A real Synapse's database as a source: by writer, in pages, and read-only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg2
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.tokens import Range
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.handlers import Batch, Handler
from synrepl.storage.database import QueryFailed
from synrepl.storage.foreign.progress import ForeignProgress, TableLocked, observe
from synrepl.storage.foreign.release import NoTableForStream, NotSynapse, UnknownSchema
from synrepl.storage.foreign.store import ForeignStore
from synrepl.storage.store import Page
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.streams.synapse.account_data import ACCOUNT_DATA
from synrepl.streams.synapse.backfill import BACKFILL
from synrepl.streams.synapse.caches import CACHES
from synrepl.streams.synapse.device_lists import DEVICE_LISTS
from synrepl.streams.synapse.events import EVENTS
from synrepl.streams.synapse.groups import GROUPS
from synrepl.streams.synapse.pushers import PUSHERS
from synrepl.streams.synapse.receipts import RECEIPTS
from synrepl.streams.synapse.to_device import TO_DEVICE
from synrepl.streams.synapse.typing import TYPING
from synrepl.testing.postgres import fresh_database
from synrepl.wire.commands import Position
from tests.services.world import FakeUpstream, RecordingLog
from tests.storage.foreign_databases import foreign_database, sent

WHOLE = Range(0, 10**9)
ALL = 10**6

#: Streams by the releases whose tables have them.
IN_ALL = {
    *("events", "backfill", "presence", "receipts", "push_rules", "pushers", "caches"),
    *("device_lists", "to_device", "tag_account_data", "account_data"),
}
ONLY_NEWEST = {"sticky_events", "thread_subscriptions", "quarantined_media", "profile_updates"}


async def progress_of(store: ForeignStore) -> Mapping[str, ForeignProgress]:
    """The progress of each stream."""
    release = await store.release()
    return await store.read("observe positions", lambda txn: observe(txn, release))


class ForeignCase(TestCase):
    """Tests with a store over some database."""

    timeout = 60

    def store_at(self, dsn: str, **more: Any) -> ForeignStore:
        database = PostgresDatabase(reactor, dsn, "test")
        self.addCleanup(lambda: Deferred.fromCoroutine(database.close()))
        return ForeignStore(database, **more)

    async def store(self, version: str) -> ForeignStore:
        return self.store_at(await foreign_database(version))


class Pages(ForeignCase):
    async def everything(self, store: ForeignStore, stream: Stream, writer: str | None) -> Page:
        return await store.page(stream, WHOLE, writer, ALL)

    async def test_each_fact_is_of_one_writer(self) -> None:
        store = await self.store("1.163.2")
        for stream, writers in (
            (EVENTS, ["persister1", "persister2"]),
            (BACKFILL, ["persister1", "persister2"]),
            (DEVICE_LISTS, ["writer1", "writer2"]),
            (CACHES, ["master", "persister1", "persister2", "writer1", "writer2"]),
        ):
            of_all = (await self.everything(store, stream, None)).facts
            of_each = []
            for writer in writers:
                facts = (await self.everything(store, stream, writer)).facts
                self.assertEqual({fact.writer for fact in facts}, {writer})
                of_each += facts
            self.assertEqual(sorted(of_each, key=lambda fact: fact.token), list(of_all))

    async def test_rows_without_a_writer_are_returned_for_every_writer(self) -> None:
        store = await self.store("1.163.2")
        for writer, named in (("writer1", "writer1"), ("any", "any"), (None, "writer1")):
            facts = (await self.everything(store, ACCOUNT_DATA, writer)).facts
            self.assertEqual((len(facts), {fact.writer for fact in facts}), (41, {named}))

    async def test_reads_a_release_without_writers(self) -> None:
        store = await self.store("1.11.1")
        for writer in (None, "master"):
            facts = (await self.everything(store, CACHES, writer)).facts
            self.assertEqual((len(facts), {fact.writer for fact in facts}), (844, {"master"}))

    async def test_pages_of_any_size_give_the_same_facts(self) -> None:
        store = await self.store("1.11.1")
        for stream in (EVENTS, BACKFILL, TO_DEVICE):
            everything = (await self.everything(store, stream, None)).facts
            largest = max(everything, key=lambda fact: len(fact.rows)).token
            whole = [fact for fact in everything if abs(fact.token - largest) <= 50]
            for limit in (1, 3):
                found: list[Fact] = []
                after, more = whole[0].token - 1, True
                while more:
                    page = await store.page(stream, Range(after, whole[-1].token), None, limit)
                    rows = sum(len(fact.rows) for fact in page.facts)
                    self.assertTrue(len(page.facts) == 1 or rows <= limit)
                    self.assertGreater(page.upto, after)
                    found += page.facts
                    after, more = page.upto, page.is_limited
                self.assertEqual(found, whole)

    async def test_ranges_are_half_open(self) -> None:
        store = await self.store("1.43.0")
        for stream in (EVENTS, BACKFILL, CACHES):
            page = await store.page(stream, Range(10, 20), None, ALL)
            tokens = [fact.token for fact in page.facts]
            self.assertEqual((tokens[0], tokens[-1]), (11, 20))
            self.assertEqual((page.upto, page.is_limited), (20, False))
        for span in (Range(5, 5), Range(9, 2)):
            page = await store.page(EVENTS, span, None, ALL)
            self.assertEqual(page, Page((), max(span), is_limited=False))

    async def positions(self, version: str) -> Mapping[str, Mapping[str, int]]:
        found = await progress_of(await self.store(version))
        return {name: each.positions for name, each in found.items()}

    async def test_reads_each_writers_position_of_old_and_new_releases(self) -> None:
        positions = await self.positions("1.163.2")
        self.assertEqual(positions["events"], {"persister1": 612, "persister2": 614})
        self.assertEqual(positions["backfill"], {"persister1": 22, "persister2": 43})
        self.assertEqual(positions["caches"]["writer1"], 407)
        positions = await self.positions("1.11.1")
        self.assertEqual(positions["backfill"], {"master": 31})
        self.assertEqual(positions["caches"], {"master": 845})


class IssuedTokens(ForeignCase):
    """The tokens that a real server's sequences can have given out."""

    async def test_reads_the_last_token_of_a_sequence(self) -> None:
        store = await self.store("1.163.2")
        progress_by_stream = await progress_of(store)
        for stream in (EVENTS, TO_DEVICE, ACCOUNT_DATA, BACKFILL, CACHES):
            at = progress_by_stream[stream.name]
            assert at.last is not None
            found = await store.given_out(stream)
            self.assertEqual(found, max(at.last, at.highest, *at.recorded.values()))

    async def test_streams_without_a_sequence_have_no_issued_token(self) -> None:
        store = await self.store("1.0.0")
        for stream in (EVENTS, TO_DEVICE, TYPING):
            self.assertIsNone(await store.given_out(stream))


class Positions(TestCase):
    """Recorded positions against rows in the tables."""

    def positions(self, tables: Mapping[str, int], recorded: Mapping[str, int]) -> dict[str, int]:
        return ForeignProgress("seq", 99, tables, recorded).positions

    def test_uses_rows_when_no_position_is_recorded(self) -> None:
        self.assertEqual(self.positions({}, {}), {"master": 0})
        self.assertEqual(self.positions({"": 5}, {}), {"master": 5})
        self.assertEqual(self.positions({"": 5, "w1": 7}, {}), {"w1": 7})
        self.assertEqual(self.positions({"": 8, "w1": 7}, {}), {"w1": 7, "master": 8})

    def test_a_writer_that_stopped_before_it_recorded_its_position(self) -> None:
        self.assertEqual(self.positions({"w1": 9}, {"w1": 5, "w2": 7}), {"w1": 9, "w2": 7})

    def test_keeps_a_position_without_rows(self) -> None:
        self.assertEqual(self.positions({"w1": 4}, {"w1": 5}), {"w1": 5})

    def test_rows_without_a_writer_belong_to_the_only_one(self) -> None:
        self.assertEqual(self.positions({"w1": 4, "": 9}, {"w1": 5}), {"w1": 9})
        self.assertEqual(self.positions({"": 4}, {"w1": 5}), {"w1": 5})
        both = {"w1": 5, "w2": 7}
        self.assertEqual(self.positions({"": 9}, both), both)

    def test_adds_a_new_writer_and_drops_one_that_is_gone(self) -> None:
        found = self.positions({"new": 8, "gone": 6}, {"w1": 5, "w2": 7})
        self.assertEqual(found, {"w1": 5, "w2": 7, "new": 8})


class FollowerOfForeignTables(ForeignCase):
    """A follower that fills its gaps from the tables."""

    async def test_none_of_the_unordered_rows_is_lost(self) -> None:
        seen: list[Batch] = []

        class Keeping(Handler):
            streams = ("backfill", "caches")

            async def on_rows(self, batch: Batch) -> None:
                seen.append(batch)

        scheduler, log = TwistedScheduler(reactor), RecordingLog()
        self.addCleanup(scheduler.stop)
        delivery = Delivery(scheduler, [Subscription(Keeping())], log)
        follower = Follower(
            scheduler,
            Catalogue(SYNAPSE_STREAMS),
            await self.store("1.43.0"),
            delivery,
            log,
            ["backfill", "caches"],
            foreign=True,
        )
        follower.connected(FakeUpstream())
        follower.received([Position("backfill", "master", 31, 31)])
        follower.received([Position("caches", "master", 889, 889)])
        ends = {("backfill", "master"): 31, ("caches", "master"): 889}
        while dict(follower.positions) != ends:
            await scheduler.sleep(0.005)
        got: dict[str, list[Any]] = {"backfill": [], "caches": []}
        for batch in seen:
            got[batch.stream] += [row for fact in batch.facts for row in fact.rows]
        self.assertEqual(
            {name: len(rows) for name, rows in got.items()}, {"backfill": 30, "caches": 888}
        )
        for name, on_wire in sent("1.43.0").items():
            for rows in on_wire.values() if name in got else ():
                for _, row in rows:
                    self.assertIn(row, got[name])
        self.assertEqual([text for level, text in log.lines if level == "warn"], [])


class ReadOnlyAccess(ForeignCase):
    """The store is read-only, and its statements have a time limit."""

    async def test_nothing_can_be_written(self) -> None:
        store = await self.store("1.43.0")
        for sql in (
            "DELETE FROM events",
            "SELECT nextval('events_stream_seq')",
            "CREATE TABLE mine ()",
        ):
            with self.assertRaises(QueryFailed) as caught:
                await store.read("try", lambda txn, sql=sql: txn.execute(sql).rowcount)
            self.assertEqual(caught.exception.sqlstate, "25006")

    async def test_a_statement_that_takes_too_long_is_ended(self) -> None:
        store = self.store_at(await foreign_database("1.43.0"), statement_s=0.05)
        with self.assertRaises(QueryFailed) as caught:
            await store.read("try", lambda txn: txn.execute("SELECT pg_sleep(60)").rowcount)
        self.assertEqual(caught.exception.sqlstate, "57014")


class Recognition(ForeignCase):
    """Recognising releases, and refusing other databases."""

    def sql(self, dsn: str, statement: str) -> None:
        connection = psycopg2.connect(dsn)
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
        connection.close()

    async def test_recognises_each_release(self) -> None:
        partial = {"un_partial_stated_room", "un_partial_stated_event"}
        for version, schema, more, less in (
            ("1.11.1", 57, {"public_rooms", "groups", "user_signature"}, set()),
            ("1.20.1", 58, {"public_rooms", "groups", "user_signature"}, set()),
            ("1.30.1", 59, {"groups", "user_signature"}, set()),
            ("1.43.0", 63, {"groups", "user_signature"}, set()),
            ("1.74.0", 73, {"user_signature", "un_partial_stated_room"}, set()),
            ("1.100.0", 84, {"user_signature"} | partial, set()),
            ("1.163.2", 94, partial | ONLY_NEWEST, {"tag_account_data"}),
        ):
            with self.subTest(version):
                store = await self.store(version)
                release = await store.release()
                self.assertEqual((release.version, release.unknown), (schema, {}))
                self.assertEqual(set(release.streams), (IN_ALL | more) - less)
                self.assertEqual(set(await progress_of(store)), set(release.streams))

    async def test_recognises_a_release_without_a_later_sequence(self) -> None:
        for version, sequence in (("1.30.1", None), ("1.43.0", "presence_stream_sequence")):
            progress = await progress_of(await self.store(version))
            self.assertEqual(progress["presence"].sequence, sequence)

    async def test_tags_share_a_sequence_with_account_data_but_have_their_own_position(
        self,
    ) -> None:
        dsn = await foreign_database("1.43.0", self)
        self.sql(dsn, "UPDATE stream_positions SET stream_id = 57 WHERE stream_id = 56")
        progress = await progress_of(self.store_at(dsn))
        tags, others = progress["tag_account_data"], progress["account_data"]
        self.assertEqual(tags.sequence, others.sequence)
        self.assertEqual((tags.positions, others.positions), ({"master": 56}, {"master": 57}))
        self.assertEqual(others.row_positions, {"master": 54})

    async def test_reads_the_position_of_rows_by_writer(self) -> None:
        progress = await progress_of(await self.store("1.163.2"))
        self.assertEqual(progress["events"].row_positions, progress["events"].positions)
        self.assertEqual(progress["caches"].row_positions, progress["caches"].positions)
        alone = ForeignProgress("s", 9, {"": 5, "gone": 3, "new": 9}, {"w": 7})
        self.assertEqual(alone.row_positions, {"w": 5, "new": 9})
        several = ForeignProgress("s", 9, {"": 5, "w": 4}, {"w": 7, "v": 8})
        self.assertEqual(several.row_positions, {"w": 4, "v": 0})

    async def test_refuses_an_empty_database(self) -> None:
        store = self.store_at(await fresh_database(self))
        with self.assertRaisesRegex(NotSynapse, "it has no table events"):
            await store.release()

    async def test_a_stream_whose_tables_lack_columns_is_left_out_by_name(self) -> None:
        dsn = await foreign_database("1.163.2", self)
        self.sql(dsn, "ALTER TABLE pushers DROP COLUMN pushkey CASCADE")
        store = self.store_at(dsn)
        release = await store.release()
        self.assertEqual(release.unknown, {"pushers": "pushers.pushkey"})
        self.assertNotIn("pushers", await progress_of(store))
        with self.assertRaisesRegex(
            UnknownSchema,
            r"schema 94 .* feeds stream 'pushers' .*: pushers\.pushkey is missing",
        ):
            await store.page(PUSHERS, WHOLE, None, ALL)
        self.assertTrue((await store.page(RECEIPTS, WHOLE, None, ALL)).facts)

    async def test_a_table_that_is_locked_is_named(self) -> None:
        dsn = await foreign_database("1.43.0", self)
        holder = psycopg2.connect(dsn)
        self.addCleanup(holder.close)
        holder.cursor().execute("LOCK TABLE receipts_linearized IN ACCESS EXCLUSIVE MODE")
        with self.assertRaisesRegex(TableLocked, "table receipts_linearized could not be read"):
            await progress_of(self.store_at(dsn))

    async def test_refuses_streams_without_a_table(self) -> None:
        store = await self.store("1.163.2")
        for stream in (GROUPS, TYPING):
            with self.assertRaisesRegex(NoTableForStream, f"'{stream.name}'"):
                await store.page(stream, WHOLE, None, ALL)

"""Facts read from the tables of four real servers, against the lines that they sent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import psycopg2
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.core.tokens import Range
from synrepl.storage.foreign.store import ForeignStore
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.streams.synapse.device_lists import DeviceListsRow
from synrepl.streams.synapse.events import EventRow
from synrepl.streams.synapse.profile_updates import PROFILE_UPDATES
from synrepl.streams.synapse.tag_account_data import TagAccountDataRow
from tests.storage.foreign_databases import foreign_database, sent

#: By release and stream: the number of tokens in the tables, and the number of those that were
#: also recorded when they were sent. The others were sent while nothing was recorded.
IN_TABLES: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "1.11.1": {
        "events": (1404, 1166),
        "backfill": (30, 30),
        "presence": (32, 17),
        "receipts": (65, 50),
        "push_rules": (27, 27),
        "pushers": (11, 11),
        "caches": (844, 753),
        "public_rooms": (8, 8),
        "device_lists": (58, 34),
        "to_device": (37, 26),
        "tag_account_data": (9, 9),
        "account_data": (27, 27),
        "groups": (6, 6),
        "user_signature": (13, 13),
    },
    "1.20.1": {
        "events": (327, 327),
        "backfill": (0, 0),
        "presence": (5, 1),
        "receipts": (12, 12),
        "push_rules": (6, 6),
        "pushers": (3, 3),
        "caches": (318, 309),
        "public_rooms": (6, 6),
        "device_lists": (25, 25),
        "to_device": (8, 8),
        "tag_account_data": (1, 1),
        "account_data": (7, 7),
        "groups": (3, 3),
        "user_signature": (12, 12),
    },
    "1.43.0": {
        "events": (1474, 1061),
        "backfill": (30, 30),
        "presence": (51, 20),
        "receipts": (58, 40),
        "push_rules": (21, 21),
        "pushers": (11, 11),
        "caches": (888, 721),
        "device_lists": (87, 34),
        "to_device": (38, 22),
        "tag_account_data": (24, 24),
        "account_data": (28, 28),
        "groups": (13, 13),
        "user_signature": (12, 12),
    },
    "1.163.2": {
        "events": (613, 613),
        "backfill": (42, 42),
        "presence": (14, 2),
        "receipts": (46, 46),
        "push_rules": (20, 20),
        "pushers": (13, 13),
        "caches": (502, 500),
        "device_lists": (41, 41),
        "to_device": (25, 25),
        "account_data": (41, 41),
        "sticky_events": (4, 4),
        "thread_subscriptions": (8, 8),
        "un_partial_stated_room": (0, 0),
        "un_partial_stated_event": (0, 0),
        "quarantined_media": (3, 3),
        "profile_updates": (0, 0),
    },
}

#: Streams whose tables keep every row that was sent.
COMPLETE = ("backfill", "caches", "public_rooms", "groups", "user_signature", "quarantined_media")

#: Sent, and deleted with four rooms that were purged in between.
PURGED = {"1.43.0": 11}

#: Sent as outliers and no longer outliers; or sent with a relation and redacted since.
CHANGED_SINCE = {"1.20.1": {216}, "1.163.2": {182, 206}}


class RowsOfRealServers(TestCase):
    """Compare all rows that are both in tables and in recordings."""

    timeout = 60

    async def store(self, version: str) -> ForeignStore:
        database = PostgresDatabase(reactor, await foreign_database(version), "test")
        self.addCleanup(lambda: Deferred.fromCoroutine(database.close()))
        return ForeignStore(database)

    async def facts(self, store: ForeignStore, stream: Stream, limit: int) -> list[Fact]:
        """All facts, page by page."""
        found: list[Fact] = []
        after, more = 0, True
        while more:
            page = await store.page(stream, Range(after, 10**9), None, limit)
            self.assertTrue(page.facts or not page.is_limited)
            found += page.facts
            after, more = page.upto, page.is_limited
        return found

    async def check(self, version: str) -> None:
        store = await self.store(version)
        release, on_wire = await store.release(), sent(version)
        self.assertEqual(set(release.streams), set(IN_TABLES[version]))
        for stream in SYNAPSE_STREAMS:
            if stream.name not in release.streams:
                continue
            with self.subTest(stream.name):
                facts = await self.facts(store, stream, 100)
                tokens = [fact.token for fact in facts]
                self.assertEqual(tokens, sorted(set(tokens)))
                seen = on_wire.get(stream.name, {})
                both = [fact for fact in facts if fact.token in seen]
                self.assertEqual((len(facts), len(both)), IN_TABLES[version][stream.name])
                for fact in both:
                    self.check_fact(version, fact, seen[fact.token])
                missing = set(seen).difference(tokens)
                if stream.name in COMPLETE:
                    self.assertEqual(missing, set())
                if stream.name == "events":
                    self.assertEqual(len(missing), PURGED.get(version, 0))

    def check_fact(self, version: str, fact: Fact, seen: Sequence[tuple[str, Row]]) -> None:
        changed = fact.token in CHANGED_SINCE.get(version, ())
        rows = {comparable(row, version, changed) for _, row in seen}
        for row in fact.rows:
            self.assertIn(comparable(row, version, changed), rows, fact)
        if isinstance(fact.rows[0], EventRow):  # no cell may be missing
            sent_rows = {row_key(row) for _, row in seen}
            self.assertEqual({row_key(row) for row in fact.rows}, sent_rows, fact)
        self.assertIn(fact.writer, {writer for writer, _ in seen})

    async def test_reads_the_rows_that_1_11_1_sends(self) -> None:
        await self.check("1.11.1")

    async def test_reads_the_rows_that_1_20_1_sends(self) -> None:
        await self.check("1.20.1")

    async def test_reads_the_rows_that_1_43_0_sends(self) -> None:
        await self.check("1.43.0")

    async def test_reads_the_rows_that_1_163_2_sends(self) -> None:
        await self.check("1.163.2")

    async def test_reads_changes_of_profiles(self) -> None:
        dsn = await foreign_database("1.163.2", self)
        with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO profile_updates VALUES"
                """ (2, 'master', '@c:x', 'update', '["displayname"]', 1795196434452),"""
                " (3, 'persister1', '@d:x', 'other', NULL, 1795196434495)"
            )
            connection.commit()
        database = PostgresDatabase(reactor, dsn, "test")
        self.addCleanup(lambda: Deferred.fromCoroutine(database.close()))
        facts = await self.facts(ForeignStore(database), PROFILE_UPDATES, 1)
        codec = RowCodec(PROFILE_UPDATES)
        said = (b'["@c:x","update",["displayname"]]', b'["@d:x","other",null]')
        self.assertEqual(
            facts,
            [
                Fact(2, "master", (codec.decode(said[0]),)),
                Fact(3, "persister1", (codec.decode(said[1]),)),
            ],
        )


def row_key(row: Any) -> tuple[str, str | None, str, str | None]:
    """The columns of an ``events`` row that a redaction does not change."""
    return type(row).__name__, row.event_id, row.type, row.state_key


def comparable(row: Row, version: str, changed: bool) -> str:
    """A row without the cells that are known to differ."""
    if isinstance(row, TagAccountDataRow):  # JSON in a text, with other escapes
        return repr((row.user_id, row.room_id, json.loads(row.data)))
    if (
        isinstance(row, DeviceListsRow) and version == "1.11.1"
    ):  # the table does not keep the destinations
        return repr(row.entity)
    if isinstance(row, EventRow) and changed:
        return repr((row.event_id, row.room_id, row.type, row.state_key, row.membership))
    return repr(row)

"""Beside a real Synapse of three generations: its recorded traffic is played, its database is there.

``live-forks`` of 1.11.1 and 1.43.0 ends where their tables were taken. The
recording of 1.163.2 ends twelve presence rows before; the test takes them back.
What is right is computed here, from the recordings and by plain SQL.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg2
from twisted.internet import reactor

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.testing.postgres import with_durable_server
from synrepl.testing.redis import RedisTestServer
from tests.cli.cli_case import CliCase, Command
from tests.storage.foreign_databases import foreign_database
from tests.wire.recordings import CAPTURES, records

NAME = "localhost:18701"

#: So many looks, one a second, may a watch take to see what it has to see.
PATIENCE = 60

#: Seconds for which no transaction of a watch is open, also on a machine that is busy.
OLD_S = 5

Positions = Mapping[tuple[str, str | None], int]

_SINGLE = {
    "push_rules": ("push_rules_stream.stream_id",),
    "pushers": ("pushers.id", "deleted_pushers.stream_id"),
    "groups": ("local_group_updates.stream_id",),
    "user_signature": ("user_signature_stream.stream_id",),
    "device_lists": ("device_lists_stream.stream_id", "device_lists_outbound_pokes.stream_id"),
}
#: One sequence gives out the IDs of both, and their position on record is that of both.
_TAGS = {
    "account_data": ("account_data.stream_id", "room_account_data.stream_id"),
    "tag_account_data": ("room_tags_revisions.stream_id",),
}
#: Where the IDs of streams without a position of their own on record are, by release.
TABLES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "1.11.1": {
        **_SINGLE,
        "events": ("events.stream_ordering", "current_state_delta_stream.stream_id"),
        "backfill": ("events.-stream_ordering",),
        "presence": ("presence_stream.stream_id",),
        "receipts": ("receipts_linearized.stream_id",),
        "caches": ("cache_invalidation_stream.stream_id",),
        "public_rooms": ("public_room_list_stream.stream_id",),
        "to_device": ("device_inbox.stream_id",),
        **_TAGS,
    },
    "1.43.0": {**_SINGLE, **_TAGS, "caches": ("cache_invalidation_stream_by_instance.stream_id",)},
    "1.163.2": {},
}
#: Streams whose positions are on record, under which name when that is another one.
RECORDED: Mapping[str, Mapping[str, str]] = {
    "1.11.1": {},
    "1.43.0": {
        **{name: name for name in ("events", "backfill", "receipts", "to_device")},
        "presence": "presence_stream",
    },
    "1.163.2": {
        **{name: name for name in ("events", "backfill", "receipts", "to_device", "account_data")},
        **{name: name for name in ("pushers", "quarantined_media", "sticky_events")},
        "thread_subscriptions": "thread_subscriptions",
        "presence": "presence_stream",
        "push_rules": "push_rules_stream",
        "device_lists": "device_lists_stream",
    },
}


def announced(version: str, name: str) -> dict[tuple[str, str | None], int]:
    """Where each writer of each stream ended on the wire; None where one number stands for all."""
    found: dict[tuple[str, str | None], int] = {}
    legacy = version == "1.11.1"
    for record in records(version, name):
        verb, *words = record["line"].split(" ")
        if verb not in ("RDATA", "POSITION") or record.get("dir", "S") != "S":
            continue
        key = (words[0], None if legacy else words[1])
        token = words[-1] if verb == "POSITION" else words[1 if legacy else 2]
        if verb == "POSITION":
            found[key] = int(token)
        elif token != "batch":
            found[key] = max(int(token), found.get(key, 0))
    return found


class Database:
    """That of a release."""

    def __init__(self, version: str, dsn: str) -> None:
        self.version = version
        self.dsn = dsn

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """What the last of some statements gives; committed."""
        with psycopg2.connect(self.dsn) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            found = cursor.fetchall() if cursor.description else []
        connection.close()
        return list(found)

    def committed(self) -> dict[tuple[str, str | None], int]:
        """How far each writer of each stream is."""
        writer = None if self.version == "1.11.1" else "master"
        found: dict[tuple[str, str | None], int] = {}
        for stream, columns in TABLES[self.version].items():
            tops = [self._top(*column.split(".")) for column in columns]
            found[stream, writer] = max(tops)
        if RECORDED[self.version]:
            rows = self.sql("SELECT stream_name, instance_name, stream_id FROM stream_positions")
            for stream, name in RECORDED[self.version].items():
                found |= {(stream, who): abs(at) for on, who, at in rows if on == name}
        if self.version == "1.163.2":
            table = "cache_invalidation_stream_by_instance"
            rows = self.sql(f"SELECT instance_name, max(stream_id) FROM {table} GROUP BY 1")
            found |= {("caches", who): at for who, at in rows}
        return found

    def add_receipts(self, count: int, writer: str) -> None:
        """What ``writer`` does in a transaction, without announcing it."""
        legacy = self.version == "1.11.1"
        top = "SELECT max(stream_id) + 1 FROM receipts_linearized"
        token = f"({top})" if legacy else "nextval('receipts_sequence')"
        for number in range(count):
            new = f"'stream_id', {token}, 'user_id', '@new{number}:x', 'instance_name', '{writer}'"
            insert = (
                "INSERT INTO receipts_linearized SELECT made.* FROM receipts_linearized AS old,"
                " jsonb_populate_record(NULL::receipts_linearized,"
                f" to_jsonb(old) || jsonb_build_object({new})) AS made LIMIT 1"
            )
            on_record = (
                "UPDATE stream_positions SET stream_id = currval('receipts_sequence')"
                f" WHERE stream_name = 'receipts' AND instance_name = '{writer}'"
            )
            self.sql(insert, *([] if legacy else [on_record]))

    def _top(self, table: str, column: str) -> int:
        ((found,),) = self.sql(f"SELECT coalesce(max({column}), 0) FROM {table}")
        return int(found)


class Beside(CliCase):
    """One server: its database, its traffic, and ``synrepl`` as processes beside it."""

    timeout = 300

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        await with_durable_server(self)

    async def beside(self, version: str) -> Database:
        """The database, whose DSN is in ``dsn``."""
        database = Database(version, await foreign_database(version, self))
        self.dsn_path = self.directory / "dsn"
        self.dsn_path.touch(mode=0o600)
        self.dsn_path.write_text(database.dsn)
        return database

    async def over_tcp(self, version: str) -> tuple[str, ...]:
        """Play ``live-forks``; where to listen."""
        path = CAPTURES / version / "live-forks.jsonl.gz"
        replayed = self.start("tap", "replay", path, "--speed", "0")
        said = await replayed.stderr_containing("dialect")
        return "--tcp", said.partition(" listens on ")[2].partition(",")[0]

    async def over_redis(self) -> tuple[str, ...]:
        """Play ``redis`` on a Redis; where to listen."""
        redis = RedisTestServer()
        self.addCleanup(redis.close)
        url = f"redis://127.0.0.1:{redis.port}"
        path: Path = CAPTURES / "1.163.2" / "redis.jsonl.gz"
        replayed = self.start("tap", "replay", path, "--speed", "0", "--redis", url)
        await replayed.stderr_containing("waits for REPLICATE")
        return "--redis", url, "--server-name", NAME

    def watch(self, *arguments: str) -> Command:
        """A watch, under way."""
        return self.start("watch", "--json", "--database-path", self.dsn_path, *arguments)

    async def sees(
        self, watching: Command, what: Callable[[dict[str, Any]], object], expected: object
    ) -> None:
        """Wait for a look in which ``what`` is as expected."""
        found: object = None
        for count in range(1, PATIENCE):
            look = json.loads((await watching.lines(count))[-1])
            found = what(look)
            if found == expected:
                return
        self.assertEqual(found, expected)

    async def check_positions(
        self, watching: Command, database: Database, heard: Positions
    ) -> None:
        """Every stream and writer is seen where the recording and the tables have it."""
        committed = database.committed()
        expected = {key: (token, committed.get(key, 0)) for key, token in heard.items()}
        self.assertGreater(len(expected), 15)
        self.assertEqual(committed.keys() - heard.keys(), set())
        await self.sees(watching, _positions, (expected, [], []))

    def doctor(self, *arguments: object) -> Command:
        """A doctor, under way."""
        return self.start("doctor", "--database-path", self.dsn_path, "--json", *arguments)

    async def doctor_of_old(self, database: Database) -> Command:
        """One who tells of old transactions, under way once the idle one is old."""
        young = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND state = 'idle in transaction' AND application_name LIKE 'synapse %'"
            f" AND xact_start > clock_timestamp() - interval '{OLD_S + 1} s'"
        )
        while database.sql(young):
            await TwistedScheduler(reactor).sleep(0.1)
        return self.doctor("--older", OLD_S)

    async def check_content(self, doctor: Command) -> None:
        """There is nothing to tell."""
        done = await doctor.done()
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertEqual(json.loads(done.out)["findings"], [])

    def idle(self, database: Database, application: str) -> tuple[str, str]:
        """Begin a transaction and leave it; under which name the doctor tells of it."""
        connection = psycopg2.connect(database.dsn, application_name=application)
        self.addCleanup(connection.close)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE receipts_linearized SET data = 'secret' WHERE stream_id = 1")
        return "idle-transaction", f"backend {connection.info.backend_pid}"

    async def check_findings(self, doctor: Command, *expected: tuple[str, str]) -> list[str]:
        """It tells of these, by ID and place, and of nothing else; in which words."""
        done = await doctor.done()
        self.assertEqual((done.code, done.err), (1, ""))
        findings = {(f["id"], f["where"]): f["what"] for f in json.loads(done.out)["findings"]}
        self.assertEqual(findings.keys(), set(expected))
        return [findings[each] for each in expected]

    def check_idle(self, finding: str, backend: str, application: str) -> None:
        """Check the finding about an idle transaction."""
        self.assertIn(f" holds receipts: {backend} ({application}), idle in transaction ", finding)
        self.assertIn("UPDATE receipts_linearized SET data = '…' WHERE stream_id = 1", finding)


class Legacy(Beside):
    """It has neither positions on record nor sequences that could be wrong."""

    async def test_1_11_1(self) -> None:
        database, heard = await self.beside("1.11.1"), announced("1.11.1", "live-forks")
        transaction = self.idle(database, "synapse master")
        watching = self.watch(*await self.over_tcp("1.11.1"))
        await self.check_content(self.doctor())
        await self.check_positions(watching, database, heard)
        database.add_receipts(3, "master")
        doctor = await self.doctor_of_old(database)
        await self.sees(watching, _alarms, [_alarm("receipts", "(all)", 99, 96)])
        (finding,) = await self.check_findings(doctor, transaction)
        self.check_idle(finding, transaction[1], "synapse master")


class Modern(Beside):
    async def test_1_43_0(self) -> None:
        database, heard = await self.beside("1.43.0"), announced("1.43.0", "live-forks")
        transaction = self.idle(database, "synapse master")
        watching = self.watch(*await self.over_tcp("1.43.0"))
        await self.check_content(self.doctor())
        await self.check_positions(watching, database, heard)
        database.add_receipts(3, "master")
        database.sql(
            "UPDATE stream_positions SET stream_id = 54 WHERE stream_name = 'to_device'",
            "SELECT setval('events_stream_seq', 1542 - 32)",
        )
        doctor = await self.doctor_of_old(database)
        # A position on record without rows is nothing that is announced over TCP.
        await self.sees(watching, _alarms, [_alarm("receipts", "master", 92, 89)])
        ahead, behind, idle = await self.check_findings(
            doctor, ("position-ahead", "to_device"), ("sequence-behind", "events"), transaction
        )
        self.assertEqual(
            ahead,
            "stream_positions has master at 54, sequence device_inbox_sequence gave out 44 only",
        )
        self.assertIn("sequence events_stream_seq gave out 1510, its tables go up to 1542", behind)
        self.check_idle(idle, transaction[1], "synapse master")


class Current(Beside):
    async def test_1_163_2(self) -> None:
        database, heard = await self.beside("1.163.2"), announced("1.163.2", "redis")
        presence = heard["presence", "writer1"]
        database.sql(
            f"DELETE FROM presence_stream WHERE stream_id > {presence}",
            f"UPDATE stream_positions SET stream_id = {presence}"
            " WHERE stream_name = 'presence_stream'",
            f"SELECT setval('presence_stream_sequence', {presence})",
        )
        transaction = self.idle(database, "synapse persister1")
        where = await self.over_redis()
        watching = self.watch(*where)
        await self.check_content(self.doctor())
        await self.check_positions(watching, database, heard)
        database.add_receipts(3, "writer2")
        database.sql(
            "UPDATE stream_positions SET stream_id = 93"
            " WHERE stream_name = 'device_lists_stream' AND instance_name = 'writer2'",
            "SELECT setval('events_stream_seq', 614 - 32)",
        )
        doctor = await self.doctor_of_old(database)
        ending = self.watch(*where, "--seconds", "15")
        alarms = [_alarm("device_lists", "writer2", 93, 84), _alarm("receipts", "writer2", 58, 55)]
        await self.sees(watching, _alarms, alarms)
        ahead, behind, idle = await self.check_findings(
            doctor, ("position-ahead", "device_lists"), ("sequence-behind", "events"), transaction
        )
        self.assertEqual(
            ahead,
            "stream_positions has writer2 at 93, sequence device_lists_sequence gave out 84 only",
        )
        self.assertIn("sequence events_stream_seq gave out 582, its tables go up to 614", behind)
        self.check_idle(idle, transaction[1], "synapse persister1")
        # A follower that connects late receives the positions, and ends with 1 for the silence.
        done = await ending.done()
        self.assertEqual((done.code, done.err), (1, ""))
        self.assertEqual(_alarms(json.loads(done.out.splitlines()[-1])), alarms)


def _alarm(stream: str, writer: str, committed: int, heard: int) -> str:
    """How an alarm begins."""
    finding = f"is at {committed} in the database and was announced only up to {heard}"
    return f"{stream} of {writer} {finding}, for "


def _positions(look: dict[str, Any]) -> object:
    seen = {
        (each["stream"], each["writer"]): (each["heard"], each["committed"] or 0)
        for each in look["streams"]
    }
    return seen, look["alarms"], look["trouble"]


def _alarms(look: dict[str, Any]) -> list[str]:
    return [alarm[: alarm.index(" for ") + 5] for alarm in look["alarms"]]

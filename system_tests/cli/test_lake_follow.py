"""``synrepl lake land --follow`` as a process: outages, signals, and what is left afterwards."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import polars
import psycopg2
from deltalake import DeltaTable
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.pipeline.lake.lake import Lake
from system_tests.cli.lake_case import LakeCase
from system_tests.pipeline.landing_case import rows_of
from tests.adapters.fault_proxy import FaultProxy
from tests.cli.cli_case import Command, free_port
from tests.storage.postgres import PREPARED
from tests.storage.samples import TAMPERING
from tests.storage.test_failover_sql import PROMOTE

#: Lands on Spark, however few rows there are.
ON_SPARK = ("--spark-above", "0")

#: What an earlier state of the database has not.
LOSE = f"{TAMPERING}; DELETE FROM synrepl.notes WHERE stream_id > 1"


class LandWithFollow(LakeCase):
    """``lake land --follow`` over a link to the database that can be cut."""

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        self.dsn = await PREPARED.copy(self)
        port = re.search(r":(\d+)/", self.dsn)
        assert port is not None
        self.proxy = FaultProxy(int(port[1]))
        self.addCleanup(lambda: Deferred.fromCoroutine(self.proxy.stop()))
        through = self.dsn.replace(port[0], f":{self.proxy.port}/")
        self.file = self.dsn_file(through)
        self.scratch = self.directory / "scratch"
        self.scratch.mkdir()

    def follow(self, *arguments: object) -> Command:
        """Start ``lake land --follow``."""
        return self.start(
            "lake", "land", self.lake, "--database-path", self.file, "--follow", "--every", "0.1",
            "--patience", "0", "--master", "local[1]", "--driver-memory", "512m",
            "--scratch", self.scratch, *arguments,
        )  # fmt: skip

    def texts(self) -> list[object]:
        return [row[3] for row in rows_of(Lake(self.lake).table("notes"))]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true, up to the time limit of the test."""
        while not condition():
            await TwistedScheduler(_reactor).sleep(0.005)

    async def metrics(self, port: int) -> str:
        """What it tells Prometheus."""
        found = await deferToThread(lambda: urlopen(f"http://127.0.0.1:{port}/metrics").read())
        return str(found.decode())

    async def test_continues_through_outages_until_interrupted(self) -> None:
        await self.continues_through_outages(0)

    async def test_continues_through_outages_with_spark(self) -> None:
        await self.continues_through_outages(1, *ON_SPARK)

    async def continues_through_outages(self, running_jvms: int, *arguments: object) -> None:
        port = free_port()
        self.append_notes(self.dsn, "one", "two")
        command = self.follow("--json", "--metrics-port", port, *arguments)
        (first,) = await command.lines(1)
        self.assertEqual(json.loads(first)["rows"], {"notes": 2})
        self.assertIn('synrepl_lake_rows_total{stream="notes"} 2.0', await self.metrics(port))

        self.proxy.refusing = True
        refused = [0]

        def count() -> None:
            refused[0] += 1

        self.proxy.on_refused = count
        for side in list(self.proxy.sides):
            side.transport.abortConnection()
        await command.stderr_containing("landing goes on when it is back")
        begun = refused[0]
        await self.until(lambda: refused[0] >= begun + 3)
        self.append_notes(self.dsn, "three")
        self.proxy.refusing = False
        errors = await command.stderr_containing("the database is back")
        self.assertEqual(errors.count("cannot be reached"), 1, errors)
        self.assertEqual(errors.count("\n"), 2, errors)
        _, second = await command.lines(2)
        self.assertEqual(json.loads(second)["rows"], {"notes": 1})
        self.assertIn('synrepl_lake_rows_total{stream="notes"} 3.0', await self.metrics(port))
        self.assertIn('synrepl_lake_position{stream="notes"} 3.0', await self.metrics(port))

        jvms = jvms_of(command)
        self.assertEqual(len(jvms), running_jvms)
        command.signal("INT")
        done = await command.done()
        self.assertEqual((done.code, done.err), (128 + signal.SIGINT, errors))
        self.assertEqual(running(jvms), [])
        self.assertEqual(list(self.scratch.iterdir()), [])
        self.assertEqual(self.texts(), ["one", "two", "three"])

    async def test_plain_readers_never_fail_while_it_lands_and_compacts(self) -> None:
        self.append_notes(self.dsn, "0")
        command = self.follow("--json")
        await command.lines(1)
        where = str(self.lake / "streams" / "notes")
        for nth in range(1, 10):
            table = DeltaTable(where)
            dataset = table.to_pyarrow_dataset()
            lazy = polars.scan_delta(where, version=table.version())
            self.append_notes(self.dsn, str(nth))
            await command.lines(nth + 1)
            for texts in dataset.to_table()["text"].to_pylist(), lazy.collect()["text"].to_list():
                self.assertEqual(sorted(texts), [str(each) for each in range(nth)])
        reports = [json.loads(line) for line in await command.lines(10)]
        self.assertGreater(sum(report["files_joined"] for report in reports), 6)
        command.signal("TERM")
        await command.done()
        self.assertEqual(self.texts(), [str(each) for each in range(10)])

    async def test_continues_when_a_promoted_server_is_confirmed(self) -> None:
        self.append_notes(self.dsn, "one", "two")
        command = self.follow("--json", "--no-acknowledge")
        await command.lines(1)
        self.sql(self.dsn, f"{LOSE}; {PROMOTE}")
        errors = await command.stderr_containing("landing goes on when it is back")
        self.assertIn("the database is not confirmed", errors)
        self.sql(self.dsn, "SELECT synrepl.confirm()")
        self.append_notes(self.dsn, "three")
        errors = await command.stderr_containing("the database is back")
        self.assertEqual(errors.count("\n"), 2, errors)
        reports = [json.loads(line) for line in await command.lines(2)]
        lost = reports[1]["lost_in_failover"]["notes"]
        self.assertEqual([(each["writer"], each["rows"]) for each in lost], [("sql", 1)])
        command.signal("TERM")
        await command.done()
        self.assertEqual(self.texts(), ["one", "two", "three"])

    async def test_reports_once_a_stream_that_is_held(self) -> None:
        port = free_port()
        self.append_notes(self.dsn, "one")
        with closing(psycopg2.connect(self.dsn)) as slow, slow.cursor() as cursor:
            cursor.execute("SELECT synrepl.append('notes', %s, 'sql')", ('[{"text": "late"}]',))
            command = self.follow("--settle-timeout", "0.5", "--metrics-port", port)
            errors = await command.stderr_containing("landing goes on with the rest")
            self.assertIn("not settled for 0.5 s: stream 'notes' above 0~sql.0 up to 2", errors)
            self.assertIn(f"(backend {slow.info.backend_pid} ", errors)
            metrics = await self.metrics(port)
            self.assertIn('synrepl_lake_unsettled_tokens{stream="notes"} 2.0', metrics)
            slow.commit()
        errors = await command.stderr_containing("stream 'notes' is settled again")
        self.assertEqual(errors.count("\n"), 2, errors)
        await command.lines(1)
        command.signal("TERM")
        await command.done()
        self.assertEqual(self.texts(), ["one", "late"])

    async def test_leaves_no_jvm_when_killed_or_terminated(self) -> None:
        self.append_notes(self.dsn, "one", "two")
        command = self.follow(*ON_SPARK)
        (line,) = await command.lines(1)
        self.assertRegex(line, r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  notes 2 rows$")
        jvms = jvms_of(command)
        command.signal("KILL")
        await command.done()
        await self.until(lambda: not running(jvms))

        self.append_notes(self.dsn, "three")
        command = self.follow(*ON_SPARK)
        (line,) = await command.lines(1)
        self.assertIn("notes 1 rows", line)
        jvms = jvms_of(command)
        command.signal("TERM")
        done = await command.done()
        self.assertEqual((done.code, done.err), (-signal.SIGTERM, ""))
        self.assertEqual(running(jvms), [])
        self.assertEqual(self.texts(), ["one", "two", "three"])

    async def test_ends_at_an_error_that_waiting_does_not_fix(self) -> None:
        self.append_notes(self.dsn, "one")
        command = self.follow(*ON_SPARK)
        await command.lines(1)
        jvms = jvms_of(command)
        self.sql(self.dsn, "ALTER TABLE synrepl.notes DROP COLUMN n")
        self.sql(self.dsn, "ALTER TABLE synrepl.notes ADD COLUMN n text")
        done = await command.done()
        self.assertEqual(done.code, 1)
        self.assertEqual(done.err.count("\n"), 1, done.err)
        self.assertTrue(done.err.startswith("synrepl: error: "), done.err)
        self.assertIn("'n'", done.err)
        self.assertEqual(running(jvms), [])


def jvms_of(command: Command) -> list[int]:
    """The JVMs below a command."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            pid = int(entry.name)
            names[pid], parents[pid] = stat[0], int(stat[2])

    def below(pid: int) -> bool:
        above = parents.get(pid, 0)
        return above == top or (above > 1 and below(above))

    top: int = command.transport.pid
    return [pid for pid, name in names.items() if name == "java" and below(pid)]


def running(pids: list[int]) -> list[int]:
    """The processes that are running; a zombie is not."""
    return [pid for pid in pids if (stat := _stat(pid)) and stat[1] != "Z"]


def _stat(pid: int) -> list[str]:
    """Name, state and parent of a process; empty if it does not exist."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    except OSError:
        return []
    return [name, *rest.split()[:2]]

"""``synrepl status``: a process that asks a real master."""

from __future__ import annotations

import json
import re
from typing import Any

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

import synrepl
from synrepl.cli.status.tables import tables
from synrepl.cli.terminal import show
from tests.cli.cli_case import CliCase, CommandResult, free_port


class StatusCommand(CliCase):
    """``synrepl status`` of a running master."""

    async def test_shows_a_running_master_as_tables(self) -> None:
        master = await self.master(catalogue="[events]")
        await master.append([["a", 1]], [["b", 2]])
        tail = self.start("tail", master.address, "--commands")
        await tail.lines(2)
        done = await self.run_command("status", "-c", master.path)
        while "has been held" in done.out:  # the writer's transaction has ended, and was just seen
            done = await self.run_command("status", "-c", master.path)
        golden = f"""\
master master of example.com, synrepl {synrepl.__version__}, up _
database ok
ready

stream  linear  reserved  trimmed  lag rows    lag  writers          held by
orders       2         2        0         0  0.0 s  master 2, sql 0
nothing yet in events

follower      address          dialect  streams  catching up  queued  connected
synrepl-tail  127.0.0.1:_  modern   all                        0 _
"""
        out = re.sub(r"up \d+\.\d s", "up _", done.out)
        out = re.sub(r"127\.0\.0\.1:\d+(.*\S) +\d+\.\d s", r"127.0.0.1:_\1 _", out)
        self.assertEqual(CommandResult(done.code, out, done.err), CommandResult(0, golden, ""))

    async def test_prints_the_status_document_as_json(self) -> None:
        master = await self.master()
        done = await self.run_command("status", "-c", master.path, "--json")
        self.assertEqual((done.code, done.err, done.out.count("\n")), (0, "", 1))
        status = json.loads(done.out)
        self.assertEqual(list(status)[:4], ["ready", "reasons", "warnings", "role"])
        self.assertEqual((status["ready"], status["reasons"], status["role"]), (True, [], "master"))
        self.assertEqual(list(status["streams"]), ["events", "typing", "orders"])

    async def test_asks_the_master_of_a_worker_without_http(self) -> None:
        master = await self.master()
        path = self.directory / "worker.yaml"
        path.write_text(
            "server_name: example.com\ninstance_name: w\ncatch_up: http\n"
            f"master: {{port: {master.port}, http_url: 'http://127.0.0.1:{master.http_port}'}}\n"
        )
        done = await self.run_command("status", "-c", path, "--json")
        self.assertEqual((done.code, json.loads(done.out)["role"]), (0, "master"))

    async def test_watch_reports_a_master_that_goes_away(self) -> None:
        master = await self.master()
        command = self.start("status", "-c", master.path, "--json", "--watch")
        first, second = await command.lines(2)
        self.assertTrue(json.loads(first)["ready"])
        self.assertTrue(json.loads(second)["ready"])
        await master.stop()
        seen = 2
        while json.loads((await command.lines(seen))[-1])["ready"]:
            seen += 1
        reasons = json.loads((await command.lines(seen))[-1])["reasons"]
        self.assertIn("nothing answers at http://127.0.0.1:", reasons[0])
        command.signal("INT")
        done = await command.done()
        self.assertEqual((done.code, done.err), (130, ""))

    async def test_reports_an_unreachable_master(self) -> None:
        master = await self.master()
        await master.stop()
        for flag in ((), ("--json",)):
            done = await self.run_command("status", "-c", master.path, *flag)
            self.assertEqual((done.code, done.out), (1, ""))
            self.assertRegex(done.err, r"^synrepl: error: nothing answers at http://127.*\n$")

    async def test_shows_why_a_process_is_not_ready(self) -> None:
        """The master waits for a database that does not exist."""
        path = self.directory / "master.yaml"
        path.write_text(
            "server_name: example.com\ncatalogue: none\n"
            f"database: postgresql://u@127.0.0.1:{free_port()}/d\nhttp: {{port: {free_port()}}}\n"
        )
        self.start("master", "-c", path)
        watch, seen = self.start("status", "-c", path, "--watch", "--json"), 1
        while "nothing answers" in (await watch.lines(seen))[-1]:
            seen += 1
        done = await self.run_command("status", "-c", path)
        self.assertEqual((done.code, done.err), (1, ""))
        self.assertRegex(done.out, r"^not ready: .*\n$")
        done = await self.run_command("status", "-c", path, "--json")
        self.assertEqual(list(json.loads(done.out)), ["ready", "reasons", "warnings"])

    async def test_refuses_a_configuration_without_http(self) -> None:
        path = self.directory / "master.yaml"
        path.write_text("server_name: x\ndatabase: 'host=localhost'\n")
        done = await self.run_command("status", "-c", path)
        message = "the configuration has no HTTP listener to talk to: set 'http' in it"
        self.assertEqual(done, CommandResult(2, "", f"synrepl: error: {message}\n"))


class StatusTables(SynchronousTestCase):
    """The rendering of a status."""

    def rendered(self, status: dict[str, Any]) -> list[str]:
        """The lines that are printed."""
        with CliRunner().isolation() as (out, *_):
            show(tables(status))
            return out.getvalue().decode().splitlines()

    def test_shows_the_problems_of_a_master(self) -> None:
        orders = {
            "position": 5,
            "writers": {"w2": 9, "w1": 5},
            "last_reserved": 12,
            "lag_rows": 7,
            "lag_seconds": 75.25,
            "held_by": ["w1"],
            "trimmed": {"upto": 3, "rows": 2, "held_by": "b\x1b"},
            "oldest_open_reservation": {
                "writer": "w1",
                "describe": "backend 7 (w1), in transaction for 00:01:15: SELECT\x1b[31m",
                "seconds": 75.0,
            },
        }
        follower = {
            "name": "evil\x1b[2J[red]name",
            "address": "10.0.0.1:5",
            "dialect": None,
            "streams": ["events", "orders"],
            "catching_up": ["orders"],
            "queued_lines": 17,
            "connected_s": 90061.0,
        }
        found = self.rendered(
            {
                "ready": False,
                "reasons": ["the name of writer 'master' is not held"],
                "role": "master",
                "server_name": "x.org",
                "instance_name": "master",
                "version": "1.0",
                "uptime_s": 7384.0,
                "database": {"state": "away", "error": "no route"},
                "streams": {"orders": orders},
                "followers": [follower],
            }
        )
        self.assertEqual(
            found,
            [
                "master master of x.org, synrepl 1.0, up 2 h 3 min",
                "database away: no route",
                "not ready: the name of writer 'master' is not held",
                "",
                "stream  linear  reserved            trimmed  lag rows    lag  writers     held by",
                r"orders       5        12  3, kept for b\x1b         7  1 min  w1 5, w2 9  w1",
                r"orders has been held for 1 min by w1: backend 7 (w1), in transaction for "
                r"00:01:15: SELECT\x1b[31m",
                "",
                "follower              address     dialect  streams         catching up  queued  connected",
                r"evil\x1b[2J[red]name  10.0.0.1:5  -        events, orders  orders           17    1 d 1 h",
            ],
        )

    def test_shows_named_followers(self) -> None:
        lost = {
            "name": "w1",
            "health": "missing",
            "lag_rows": 12,
            "lag_seconds": 95.0,
            "seen_s": 95.5,
            "lease_s": 3000.0,
        }
        lake = {
            "name": "lake",
            "health": "unwatched",
            "lag_rows": 0,
            "lag_seconds": 0.0,
            "seen_s": None,
            "lease_s": -7200.0,
        }
        warning = "follower w1 is missing: no sign of it for 96 s"
        status = {"role": "master", "ready": True, "warnings": [warning]}
        found = self.rendered({**status, "named_followers": [lost, lake]})
        self.assertIn(f"warning: {warning}", found)
        self.assertEqual(
            found[-3:],
            [
                "named follower  health     lag rows    lag  last sign  lease",
                "w1              missing          12  1 min  1 min ago  50 min left",
                "lake            unwatched         0  0.0 s          -  ended 2 h 0 min ago",
            ],
        )

    def test_shows_a_worker(self) -> None:
        writers = {
            "w1": {"position": 3, "heard": 9, "recorded": None},
            "w2": {"position": 12, "heard": 12, "recorded": 11},
        }
        found = self.rendered(
            {
                "ready": True,
                "reasons": [],
                "role": "worker",
                "connected": True,
                "streams": {
                    "events": {"writers": writers, "lag_rows": 9, "lag_seconds": 0.5},
                    "caches": {"writers": {}, "lag_rows": 0, "lag_seconds": 0.0},
                },
            }
        )
        self.assertEqual(
            found[1:],
            [
                "connected",
                "ready",
                "",
                "stream  writer  position  heard  recorded  lag rows    lag",
                "events  w1             3      9         -         9  0.5 s",
                "        w2            12     12        11",
                "nothing yet in caches",
            ],
        )

    def test_shows_only_caches_that_were_used(self) -> None:
        counts = {"size": 7, "hits": 999, "misses": 1, "evictions": 2, "invalidations": 3}
        unused = dict.fromkeys(counts, 0)
        status = {
            "role": "worker",
            "ready": True,
            "caches": {"by_name": {"get_user\x1b": counts, "unused": unused}, "emptied": 2},
        }
        self.assertEqual(
            self.rendered(status)[3:],
            [
                "",
                "cache         entries  hits  misses  hit rate  evictions  invalidations",
                r"get_user\x1b        7   999       1      100%          2              3",
                "unused              0     0       0         -          0              0",
                "caches were emptied 2 times, because rows were lost",
            ],
        )

    def test_shows_a_status_with_few_fields(self) -> None:
        self.assertEqual(self.rendered({"ready": True, "reasons": []}), ["ready"])
        self.assertEqual(
            self.rendered(
                {"ready": True, "role": "master", "streams": {"a": {"last_reserved": 1}}}
            )[3:],
            [
                "stream  linear  reserved  trimmed  lag rows  lag  writers  held by",
                "a            -         1        -         -    -",
                "",
                "no followers",
            ],
        )

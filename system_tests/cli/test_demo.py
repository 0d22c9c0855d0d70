"""The whole demo, as its users run it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from twisted.internet import reactor

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.demo.deployment import MASTER
from synrepl.cli.demo.traffic import ORDERS
from tests.cli.cli_case import CliCase

WORKERS = ("flaky", "slow", "legacy")


class DemoCase(CliCase):
    """Knows which processes a demo has left."""

    timeout = 400

    def processes(self) -> list[str]:
        """Command lines of running processes that name this test's directory."""
        found = []
        for each in Path("/proc").iterdir():
            if not each.name.isdigit() or int(each.name) == os.getpid():
                continue
            try:
                line = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(self.directory) in line:
                found.append(line)
        return found


class RealDemo(DemoCase):
    """The whole demo, with few rows."""

    async def test_loses_no_fact_and_leaves_no_process(self) -> None:
        done = await self.run_command(
            "demo", "--lake", "--rows", "3000", "--json", "--directory", self.directory / "demo"
        )
        self.assertEqual(done.code, 0, done)
        data = json.loads(done.out)
        self.assertEqual((data["equal"], data["problems"]), (True, []))
        self.assertGreaterEqual(data["rows"], 3000)
        self.assertEqual(
            sum(each["appended"]["rows"] for each in data["streams"].values()), data["rows"]
        )
        for name, stream in data["streams"].items():
            with self.subTest(name):
                if not stream["in_memory"]:
                    self.assertEqual(stream["stored"], {**stream["appended"], "wrong_facts": 0})
                for worker in WORKERS:
                    found = stream["workers"][worker]
                    if found is not None:
                        self.assertEqual(found["facts"], stream["appended"]["facts"])
                        self.assertEqual(found["rows"], stream["appended"]["rows"])
        lake = data["lake"]
        self.assertEqual(lake["problems"], [])
        stored = {
            n: each["stored"]["rows"] for n, each in data["streams"].items() if each["stored"]
        }
        self.assertEqual(lake["landed"], stored)
        rows = lake["job"]["columns"].index("rows")
        self.assertEqual(sum(row[rows] for row in lake["job"]["rows"]), sum(stored.values()))
        unknown = [n for n, each in data["streams"].items() if each["workers"]["legacy"] is None]
        self.assertEqual(unknown, ["presence_federation"])
        self.assertTrue(data["streams"]["typing"]["in_memory"])
        self.assertGreater(data["streams"]["events"]["workers"]["flaky"]["gaps"], 0)
        for happened in ("killed (SIGKILL)", "flaky started again", "restarted"):
            self.assertIn(happened, done.err)
        self.assertEqual(self.processes(), [])

    async def test_loses_no_fact_over_redis(self) -> None:
        where = self.directory / "demo"
        done = await self.run_command(
            "demo", "--redis", "--no-lake", "--rows", "3000", "--json", "--directory", where
        )
        self.assertEqual(done.code, 0, done)
        data = json.loads(done.out)
        self.assertEqual((data["equal"], data["problems"]), (True, []))
        streams = data["streams"]
        for name, writers in (ORDERS, [MASTER, "writer"]), ("to_device", ["writer"]):
            self.assertLessEqual(set(writers), set(streams[name]["positions"]["slow"]))
            for writer in writers:
                self.assertGreater(streams[name]["positions"]["slow"][writer], 0)
        # The workers over Redis know what is on it, the one over TCP what its dialect has.
        self.assertIsNone(streams["groups"]["workers"]["writer"])
        self.assertIsNotNone(streams["groups"]["workers"]["legacy"])
        for happened in ("Redis killed (SIGKILL)", "Redis started again", "master and"):
            self.assertIn(happened, done.err)
        self.assertEqual(self.processes(), [])

    async def test_an_interrupt_leaves_no_process(self) -> None:
        command = self.start("demo", "--keep", "--directory", self.directory / "demo")
        await command.stderr_containing("are up")
        # A child of PostgreSQL has the command line of its parent for a moment.
        while len(self.processes()) != 6:  # the demo, four daemons, PostgreSQL
            await TwistedScheduler(reactor).sleep(0.02)
        command.signal("INT")
        done = await command.done()
        self.assertEqual((done.code, done.out), (128 + signal.SIGINT, ""))
        self.assertEqual(self.processes(), [])


class RealRoomsDemo(DemoCase):
    """The whole demo of two servers and a large room, with few members."""

    async def test_ends_with_equal_servers_and_leaves_no_process(self) -> None:
        where = self.directory / "demo"
        done = await self.run_command(
            "demo", "--rooms", "--members", "800", "--json", "--directory", where
        )
        self.assertEqual(done.code, 0, done)
        data = json.loads(done.out)
        self.assertEqual((data["equal"], data["problems"], data["members"]), (True, [], 800))
        partial, whole = data["compared"]
        # The members and a user who joined; create, power levels, join rules, history visibility, name; and a topic.
        self.assertEqual((whole["state"], partial["state"]), (806, 807))
        # The join, and what was said and changed.
        self.assertEqual(partial["timeline"], 1 + sum(data["sent"]))
        self.assertGreater(partial["events"], 806)
        self.assertGreater(min(data["sent"]), 2)
        self.assertLess(data["seconds"]["partial"], data["seconds"]["complete"])
        for happened in ("has joined", "both directions", "killed (SIGKILL)", "is up again"):
            self.assertIn(happened, done.err)
        self.assertEqual(self.processes(), [])

    async def test_refuses_options_of_the_other_demo(self) -> None:
        for options, words in (
            (("--rooms", "--rows", "3000"), "--rows does not go with --rooms"),
            (("--rooms", "--no-lake"), "--lake does not go with --rooms"),
            (("--members", "20"), "--members is for --rooms"),
        ):
            done = await self.run_command("demo", *options)
            self.assertEqual(done.code, 2)
            self.assertIn(words, done.err)

"""``synrepl demo``: the real one with few rows, and what it would say if something were wrong."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import TestCase
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.clock import Scheduler
from synrepl.core.tokens import Range
from synrepl.daemon.cli.demo import how_to_look
from synrepl.daemon.cli.redis_url import given_redis
from synrepl.daemon.config import load_master, load_worker
from synrepl.daemon.database import LastPort
from synrepl.daemon.demo.child_process import DaemonProcess, Ended
from synrepl.daemon.demo.comparison import MAX_RUNS, Compared, Comparison, Difference, Fault
from synrepl.daemon.demo.history import History
from synrepl.daemon.demo.outcome import Appended, Behind, Outcome
from synrepl.daemon.demo.report import report
from synrepl.daemon.demo.site import MASTER, NotEmpty, Site
from synrepl.daemon.demo.tally import Entry, entry
from synrepl.daemon.demo.traffic import FLEETING_SHARE, ORDER_COLUMNS, ORDERS, Request, Traffic
from synrepl.daemon.demo.verification import Verified
from synrepl.daemon.demo.watched import COUNTS
from synrepl.daemon.sources import OutOfReach, RoutedSource
from synrepl.services.announcing.announce import Announcer
from synrepl.services.announcing.publish import Publisher
from synrepl.services.writing.write import StreamWriter, WriterAway
from synrepl.storage.memory_store import MemoryStore
from synrepl.storage.store import Page, Trimmed
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.declared import declare
from synrepl.streams.definition import Stream
from synrepl.streams.synapse import SYNAPSE_STREAMS
from tests.daemon.cli_world import REPOSITORY, CliCase
from tests.services.world import Silent

CATALOGUE = Catalogue((*SYNAPSE_STREAMS, declare(ORDERS, ORDER_COLUMNS)))

WORKERS = ("mortal", "slow", "legacy")


def a_fact(token: int, writer: str = MASTER, rows: int = 1, digest: bytes = b"d") -> Entry:
    return Entry(token, writer, rows, digest)


def compare(expected: list[Entry], found: list[Entry]) -> Compared:
    comparison = Comparison(found)
    for each in expected:
        comparison.expect(each)
    return comparison.finish()


class Comparing(TestCase):
    """Each thing that can be wrong is reported, with where it is."""

    facts = [a_fact(token, rows=2) for token in (1, 2, 3, 5, 6)]  # noqa: RUF012

    def test_equal(self) -> None:
        self.assertEqual(compare(self.facts, self.facts), Compared(5, 10, 0, []))
        self.assertEqual(compare([], []), Compared(0, 0, 0, []))

    def test_missing_facts(self) -> None:
        compared = compare(self.facts, [self.facts[0], self.facts[-1]])
        self.assertEqual(compared.wrong, 3)
        self.assertEqual(compared.differences, [Difference(Fault.MISSING, 2, 5, 3)])
        self.assertEqual(str(compared.differences[0]), "3 facts at tokens 2 to 5 are missing")

    def test_missing_at_the_end(self) -> None:
        compared = compare(self.facts, self.facts[:-1])
        self.assertEqual(compared.differences, [Difference(Fault.MISSING, 6, 6, 1)])
        self.assertEqual(str(compared.differences[0]), "the fact at token 6 is missing")

    def test_a_fact_that_is_there_twice(self) -> None:
        other = self.facts[1]._replace(writer="")
        compared = compare(self.facts, sorted([*self.facts, other]))
        self.assertEqual(compared.differences, [Difference(Fault.DOUBLED, 2, 2, 1)])
        self.assertEqual((compared.facts, compared.rows), (5, 10))

    def test_a_wrong_digest(self) -> None:
        found = [*self.facts[:3], self.facts[3]._replace(digest=b"other"), self.facts[4]]
        compared = compare(self.facts, found)
        self.assertEqual(compared.differences, [Difference(Fault.DIFFERENT, 5, 5, 1)])

    def test_takes_a_fact_in_any_form_that_is_as_good(self) -> None:
        whole = self.facts[0]._replace(digest=b"with all columns")
        for found, differences in ((self.facts[0], 0), (whole, 0), (a_fact(1), 1)):
            comparison = Comparison([found])
            comparison.expect(self.facts[0], whole)
            self.assertEqual(comparison.finish().wrong, differences)

    def test_a_wrong_number_of_rows_and_a_wrong_writer(self) -> None:
        found = [self.facts[0]._replace(rows=1), self.facts[1]._replace(writer="x")]
        compared = compare(self.facts[:2], found)
        self.assertEqual(compared.differences, [Difference(Fault.DIFFERENT, 1, 2, 2)])

    def test_facts_that_nobody_expects(self) -> None:
        found = [a_fact(0), *self.facts[:3], a_fact(4), *self.facts[3:], a_fact(9)]
        compared = compare(self.facts, found)
        unexpected = [Difference(Fault.UNEXPECTED, token, token, 1) for token in (0, 4, 9)]
        self.assertEqual(compared.differences, unexpected)

    def test_what_is_told_is_bounded_and_all_is_counted(self) -> None:
        facts = [a_fact(token) for token in range(1, 3 * MAX_RUNS)]
        compared = compare(facts, facts[::2])
        self.assertEqual(len(compared.differences), MAX_RUNS)
        self.assertEqual(compared.wrong, len(facts) - len(facts[::2]))

    @settings(max_examples=100)
    @given(st.sets(st.integers(1, 40)), st.sets(st.integers(1, 40)))
    def test_exactly_the_tokens_of_one_side_are_wrong(
        self, left: set[int], right: set[int]
    ) -> None:
        compared = compare([a_fact(t) for t in sorted(left)], [a_fact(t) for t in sorted(right)])
        self.assertEqual(compared.wrong, len(left ^ right))
        self.assertEqual(sum(each.facts for each in compared.differences), len(left ^ right))
        self.assertEqual(compared.facts, len(right))

    def test_the_digest_is_of_all_cells(self) -> None:
        row = CATALOGUE[ORDERS].kinds[""]
        first = entry(1, MASTER, [row("o1", "anvil", 1, None)])
        self.assertEqual(first, entry(1, MASTER, [row("o1", "anvil", 1, None)]))
        for cells in (("o2", "anvil", 1, None), ("o1", "anvil", 1, {"a": 1})):
            self.assertNotEqual(first, entry(1, MASTER, [row(*cells)]))


class Judging(TestCase):
    """From comparisons to a verdict."""

    def outcome(self, found: Compared, *behind: Behind) -> Outcome:
        good = Compared(3, 4, 0, [])
        stream = Verified(3, 4, good, {"slow": found, "legacy": None})
        counts = {name: Counter({"events": 1}) for name in COUNTS}
        return Outcome(
            appended=Appended(1.0, 0, 0),
            streams={"events": stream},
            fleeting=frozenset(),
            counts={"slow": counts, "legacy": counts},
            positions={"events": {MASTER: {MASTER: 3, "(all)": 3}}},
            behind=behind,
        )

    def shown(self, outcome: Outcome) -> str:
        console = Console(width=200, no_color=True)
        with console.capture() as captured:
            console.print(*report(outcome), sep="\n")
        return captured.get()

    def test_all_equal(self) -> None:
        outcome = self.outcome(Compared(3, 4, 0, []))
        self.assertEqual(outcome.problems, [])
        self.assertTrue(outcome.to_json()["equal"])
        self.assertIn("All equal", self.shown(outcome))

    def test_a_difference_names_stream_worker_and_tokens(self) -> None:
        outcome = self.outcome(Compared(1, 2, 2, [Difference(Fault.MISSING, 2, 3, 2)]))
        problem = "events, worker slow: 2 facts at tokens 2 to 3 are missing"
        self.assertEqual(outcome.problems, [problem])
        self.assertEqual(outcome.to_json()["problems"], [problem])
        self.assertFalse(outcome.to_json()["equal"])
        self.assertIn(problem, self.shown(outcome))
        self.assertNotIn("All equal", self.shown(outcome))

    def test_what_is_not_told_one_by_one_is_counted(self) -> None:
        outcome = self.outcome(Compared(1, 2, 9, [Difference(Fault.MISSING, 2, 3, 2)]))
        self.assertIn("events, worker slow: and 7 more facts are wrong", outcome.problems)

    def test_a_worker_that_stays_behind(self) -> None:
        behind = Behind("events", "slow", MASTER, 2, 3)
        outcome = self.outcome(Compared(3, 4, 0, []), behind)
        self.assertEqual(
            outcome.problems, ["events, worker slow: it stands at 2 of master, the master at 3"]
        )
        self.assertIn("1 difference:", self.shown(outcome))


class Playing(TestCase):
    """The traffic."""

    def requests(self, rows: int) -> list[Request]:
        return list(Traffic(CATALOGUE, rows).requests())

    def test_it_is_as_long_as_wanted_and_the_same_each_time(self) -> None:
        traffic = Traffic(CATALOGUE, 20_000)
        requests = list(traffic.requests())
        self.assertEqual(requests, list(traffic.requests()))
        self.assertEqual([request.number for request in requests], list(range(len(requests))))
        self.assertLess(abs(sum(request.rows for request in requests) - 20_000), 100)

    def test_streams_in_memory_come_early(self) -> None:
        requests = self.requests(20_000)
        rows = last = 0
        for request in requests:
            rows += request.rows
            self.assertEqual(request.fleeting, CATALOGUE[request.stream].in_memory)
            if request.fleeting:
                last = rows
        self.assertTrue(any(request.fleeting for request in requests))
        self.assertLess(last, 20_000 * FLEETING_SHARE + 100)

    def test_every_row_is_one_of_its_stream(self) -> None:
        traffic = Traffic(CATALOGUE, 20_000)
        seen = set()
        for request in traffic.requests():
            rows = sum(map(len, traffic.facts_of(request)))
            self.assertEqual(rows, request.rows)
            self.assertEqual(
                json.loads(request.body)["facts"],
                [[json.loads(row) for row in fact] for fact in request.facts],
            )
            seen.add(request.stream)
        self.assertGreater(len(seen), 14)
        self.assertIn(ORDERS, seen)


class TheDirectory(TestCase):
    """What is written into it."""

    def setUp(self) -> None:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.site = Site(Path(directory.name) / "demo")

    def test_the_configurations_can_be_read(self) -> None:
        self.site.write()
        master = load_master([self.site.config(MASTER)])
        self.assertEqual(master.listeners[0].port, self.site.port)
        for worker in self.site.workers:
            config = load_worker([self.site.config(worker.name)])
            self.assertEqual(
                (config.name_as_follower, config.dialect), (worker.name, worker.dialect)
            )
            self.assertEqual(config.master.port, self.site.port)
        ports = {self.site.port, self.site.http_port, *(each.port for each in self.site.workers)}
        self.assertEqual(len(ports), 5)

    def test_a_redis_that_is_there(self) -> None:
        directory = self.site.directory.parent
        secret = directory / "secret"
        secret.touch(mode=0o600)
        secret.write_text("sesame\n")
        for url in (
            "redis://me@127.0.0.1:1234/5",
            "rediss://a.example?ca_file=ca.pem",
            "unix:///a",
        ):
            with self.subTest(url):
                redis = given_redis(url, secret)
                site = Site(directory / f"demo-{len(url)}", redis)
                site.write()
                for config in (
                    load_master([site.config(MASTER)]),
                    load_worker([site.config("slow")]),
                ):
                    found = config.redis
                    assert found is not None
                    assert found.password is not None
                    self.assertEqual(found.password.reveal(), "sesame")
                    ca_file = None if redis.ca_file is None else redis.ca_file.absolute()
                    host = found.host if redis.path is None else ""  # which a socket has not
                    same = replace(found, password=redis.password, host=host)
                    self.assertEqual(same, replace(redis, ca_file=ca_file))
                self.assertEqual(config.stream_writers[ORDERS], (MASTER, "writer"))
                self.assertIsNone(load_worker([site.config("legacy")]).redis)

    def test_nobody_s_files_are_touched(self) -> None:
        self.site.write()
        with self.assertRaises(NotEmpty):
            self.site.write()

    def test_the_commands_to_look_at_it(self) -> None:
        told = how_to_look(self.site)
        self.assertIn(f"printf 'REPLICATE events NOW\\n' | nc 127.0.0.1 {self.site.port}\n", told)
        self.assertIn(f"printf 'REPLICATE\\n' | nc 127.0.0.1 {self.site.port}\n", told)


class TheHistory(TestCase):
    """Lag and rate."""

    def test_lag_is_the_age_of_what_is_missing(self) -> None:
        history = History()
        for now, total in ((1.0, 0), (2.0, 100), (3.0, 100), (4.0, 300)):
            history.note(now, total)
        self.assertEqual(history.when(50, 9.0), 2.0)
        self.assertEqual(history.when(100, 9.0), 4.0)
        self.assertEqual(history.when(300, 9.0), 9.0)

    def test_rate_is_of_the_last_seconds(self) -> None:
        history = History()
        self.assertEqual(history.rate(1.0), 0.0)
        for now, total in ((1.0, 0), (8.0, 1000), (9.0, 1500)):
            history.note(now, total)
        self.assertAlmostEqual(history.rate(10.0), 250.0)


class Missed(CliCase):
    """Where a worker gets what it missed of streams in memory."""

    async def test_each_stream_from_its_source(self) -> None:
        class Named:
            def __init__(self, name: str) -> None:
                self.asked: list[str] = []

            async def page(
                self, stream: Stream, span: Range, writer: str | None, limit: int
            ) -> Page:
                self.asked.append(stream.name)
                return Page((), span.upto, limited=False)

        tables, memory = Named("tables"), Named("memory")
        source = RoutedSource(tables, memory)
        for name in ("events", "typing"):
            await source.page(CATALOGUE[name], Range(0, 5), MASTER, 10)
        self.assertEqual((tables.asked, memory.asked), (["events"], ["typing"]))

    async def test_what_is_out_of_reach_is_said_to_be_gone(self) -> None:
        page = await OutOfReach().page(CATALOGUE["typing"], Range(5, 5), MASTER, 10)
        self.assertEqual(page, Page((), 5, limited=False))
        with self.assertRaises(Trimmed) as caught:
            await OutOfReach().page(CATALOGUE["typing"], Range(0, 5), MASTER, 10)
        self.assertEqual(caught.exception.facts["trimmed"], 5)


class Suspended(MemoryStore):
    """A store in which an append waits for the test before it begins."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.waiting: Deferred[None] = Deferred()

    async def step(self, what: str) -> None:
        """Wait, where an append begins."""
        if what == "append":
            await self.waiting


class Found(CliCase):
    """What the demo brought to light."""

    async def test_an_append_caught_by_the_end_of_its_process_may_be_tried_again(self) -> None:
        stream = CATALOGUE["orders"]
        scheduler = TwistedScheduler(Clock())
        store = Suspended(scheduler)
        announcer = Announcer(scheduler, store, [stream], Publisher(scheduler, {}), Silent())
        writer = StreamWriter(scheduler, store, MASTER, [stream], announcer, Silent())
        await writer.start()
        row = stream.kinds[""]("o1", "anvil", 1, None)
        appended = Deferred.fromCoroutine(writer.append(stream, [[row]]))
        await writer.stop()
        store.waiting.callback(None)
        with self.assertRaises(WriterAway):
            await appended

    async def test_an_empty_stream_in_memory_begins_at_0(self) -> None:
        stream = CATALOGUE["typing"]
        scheduler = TwistedScheduler(Clock())
        store = MemoryStore(scheduler)
        announcer = Announcer(scheduler, store, [stream], Publisher(scheduler, {}), Silent())
        await StreamWriter(scheduler, store, MASTER, [stream], announcer, Silent()).start()
        await announcer.start()
        self.assertEqual(announcer.states["typing"].linear, 0)

    def test_the_port_of_the_database_is_remembered(self) -> None:
        last = LastPort(self.directory / "port")
        self.assertEqual(last.read(), 0)
        last.write("postgresql://postgres:secret@127.0.0.1:4711/postgres")
        self.assertEqual(last.read(), 4711)
        for nonsense in ("", "x", "-1", "65536", "9" * 5000):
            (self.directory / "port").write_text(nonsense)
            self.assertEqual(last.read(), 0)


class Processes(CliCase):
    """The daemons as children."""

    async def test_one_that_cannot_run_is_told_with_what_it_said(self) -> None:
        config, log = self.directory / "none.yaml", self.directory / "log"
        self.enterContext(patch.dict(os.environ, PYTHONPATH=str(REPOSITORY)))
        process = DaemonProcess(TwistedScheduler(reactor), "master", "m", config, log)
        process.check()
        await process.stop()  # never started: fine
        process.start()
        await process.ended()
        with self.assertRaises(Ended) as caught:
            process.check()
        self.assertIn("none.yaml", str(caught.exception))
        self.assertIn("exit status 2", str(caught.exception))


class TheRealOne(CliCase):
    """All of it, with few rows."""

    timeout = 400

    def processes(self) -> list[str]:
        """Command lines of living processes that have to do with this test's directory."""
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

    async def test_nothing_is_lost_and_nothing_is_left(self) -> None:
        done = await self.run_it(
            "demo", "--lake", "--rows", "3000", "--json", "--directory", self.directory / "demo"
        )
        self.assertEqual(done.code, 0, done)
        told = json.loads(done.out)
        self.assertEqual((told["equal"], told["problems"]), (True, []))
        self.assertGreaterEqual(told["rows"], 3000)
        self.assertEqual(
            sum(each["appended"]["rows"] for each in told["streams"].values()), told["rows"]
        )
        for name, stream in told["streams"].items():
            with self.subTest(name):
                if not stream["in_memory"]:
                    self.assertEqual(stream["stored"], {**stream["appended"], "wrong_facts": 0})
                for worker in WORKERS:
                    found = stream["workers"][worker]
                    if found is not None:
                        self.assertEqual(found["facts"], stream["appended"]["facts"])
                        self.assertEqual(found["rows"], stream["appended"]["rows"])
        lake = told["lake"]
        self.assertEqual(lake["problems"], [])
        stored = {
            n: each["stored"]["rows"] for n, each in told["streams"].items() if each["stored"]
        }
        self.assertEqual(lake["landed"], stored)
        rows = lake["job"]["columns"].index("rows")
        self.assertEqual(sum(row[rows] for row in lake["job"]["rows"]), sum(stored.values()))
        unknown = [n for n, each in told["streams"].items() if each["workers"]["legacy"] is None]
        self.assertEqual(unknown, ["presence_federation"])
        self.assertTrue(told["streams"]["typing"]["in_memory"])
        self.assertGreater(told["streams"]["events"]["workers"]["mortal"]["gaps"], 0)
        for happened in ("killed (SIGKILL)", "started again", "restarted"):
            self.assertIn(happened, done.err)
        self.assertEqual(self.processes(), [])

    async def test_over_redis(self) -> None:
        where = self.directory / "demo"
        done = await self.run_it(
            "demo", "--redis", "--no-lake", "--rows", "3000", "--json", "--directory", where
        )
        self.assertEqual(done.code, 0, done)
        told = json.loads(done.out)
        self.assertEqual((told["equal"], told["problems"]), (True, []))
        streams = told["streams"]
        for name, writers in (ORDERS, [MASTER, "writer"]), ("to_device", ["writer"]):
            self.assertLessEqual(set(writers), set(streams[name]["positions"]["slow"]))
            for writer in writers:
                self.assertGreater(streams[name]["positions"]["slow"][writer], 0)
        # The workers over Redis know what is on it, the one over TCP what its dialect has.
        self.assertIsNone(streams["groups"]["workers"]["writer"])
        self.assertIsNotNone(streams["groups"]["workers"]["legacy"])
        for happened in ("Redis killed (SIGKILL)", "Redis is started again", "master and"):
            self.assertIn(happened, done.err)
        self.assertEqual(self.processes(), [])

    async def test_an_interrupt_leaves_nothing_behind(self) -> None:
        command = self.start("demo", "--keep", "--directory", self.directory / "demo")
        await command.said("are up")
        # A child of PostgreSQL has the command line of its parent for a moment.
        while len(self.processes()) != 6:  # the demo, four daemons, PostgreSQL
            await TwistedScheduler(reactor).sleep(0.02)
        command.signal("INT")
        done = await command.done()
        self.assertEqual((done.code, done.out), (128 + signal.SIGINT, ""))
        self.assertEqual(self.processes(), [])

"""``synrepl demo``: a real run with few rows, and what it reports when something is wrong."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import TestCase
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.demo.command import instructions
from synrepl.cli.demo.deployment import (
    MASTER,
    DaemonEnded,
    DaemonSubprocess,
    Deployment,
    NotEmpty,
)
from synrepl.cli.demo.lake import JobResult, LakeResult, lake_report
from synrepl.cli.demo.progress import COUNTERS, ProgressDisplay, WorkerProgress
from synrepl.cli.demo.recorder import FactDigest, digest_fact
from synrepl.cli.demo.report import (
    AppendSummary,
    DemoResult,
    LaggingWorker,
    closing,
    report,
)
from synrepl.cli.demo.traffic import (
    IN_MEMORY_SHARE,
    ORDER_COLUMNS,
    ORDERS,
    AppendRequest,
    Traffic,
)
from synrepl.cli.demo.verification import (
    MAX_RUNS,
    Comparison,
    ComparisonResult,
    Mismatch,
    MismatchRun,
    StreamVerification,
)
from synrepl.cli.redis_url import redis_from_options
from synrepl.core.clock import Scheduler
from synrepl.core.tokens import Range
from synrepl.daemon.config.config import load_master, load_worker
from synrepl.daemon.database import LastPort
from synrepl.daemon.sources import RoutedSource, UnreachableSource
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.writing.stream_writer import StreamWriter, WriterAway
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.store import Page, Trimmed
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.declared import declare
from synrepl.streams.definition import Stream
from synrepl.streams.synapse import SYNAPSE_STREAMS
from tests.cli.cli_case import REPOSITORY, CliCase
from tests.services.world import NullLog

CATALOGUE = Catalogue((*SYNAPSE_STREAMS, declare(ORDERS, ORDER_COLUMNS)))

WORKERS = ("flaky", "slow", "legacy")

#: The streams that the demo appends to.
RECORDED = {request.stream for request in Traffic(CATALOGUE, 20_000).requests()}


def fact(token: int, writer: str = MASTER, rows: int = 1, digest: bytes = b"d") -> FactDigest:
    return FactDigest(token, writer, rows, digest)


def compare(expected: list[FactDigest], found: list[FactDigest]) -> ComparisonResult:
    comparison = Comparison(found)
    for each in expected:
        comparison.expect(each)
    return comparison.finish()


class ComparisonOfFacts(TestCase):
    """Each kind of mismatch is reported with its tokens."""

    facts = [fact(token, rows=2) for token in (1, 2, 3, 5, 6)]  # noqa: RUF012

    def test_equal_facts_have_no_mismatch(self) -> None:
        self.assertEqual(compare(self.facts, self.facts), ComparisonResult(5, 10, 0, []))
        self.assertEqual(compare([], []), ComparisonResult(0, 0, 0, []))

    def test_reports_missing_facts(self) -> None:
        compared = compare(self.facts, [self.facts[0], self.facts[-1]])
        self.assertEqual(compared.wrong, 3)
        self.assertEqual(compared.runs, [MismatchRun(Mismatch.MISSING, 2, 5, 3)])
        self.assertEqual(str(compared.runs[0]), "3 facts at tokens 2 to 5 are missing")

    def test_reports_a_missing_fact_at_the_end(self) -> None:
        compared = compare(self.facts, self.facts[:-1])
        self.assertEqual(compared.runs, [MismatchRun(Mismatch.MISSING, 6, 6, 1)])
        self.assertEqual(str(compared.runs[0]), "the fact at token 6 is missing")

    def test_reports_a_fact_that_is_there_twice(self) -> None:
        other = self.facts[1]._replace(writer="")
        compared = compare(self.facts, sorted([*self.facts, other]))
        self.assertEqual(compared.runs, [MismatchRun(Mismatch.DUPLICATED, 2, 2, 1)])
        self.assertEqual((compared.facts, compared.rows), (5, 10))

    def test_reports_other_contents(self) -> None:
        found = [*self.facts[:3], self.facts[3]._replace(digest=b"other"), self.facts[4]]
        compared = compare(self.facts, found)
        self.assertEqual(compared.runs, [MismatchRun(Mismatch.DIFFERENT, 5, 5, 1)])

    def test_takes_a_fact_in_any_form_that_is_as_good(self) -> None:
        whole = self.facts[0]._replace(digest=b"with all columns")
        for found, wrong in ((self.facts[0], 0), (whole, 0), (fact(1), 1)):
            comparison = Comparison([found])
            comparison.expect(self.facts[0], whole)
            self.assertEqual(comparison.finish().wrong, wrong)

    def test_reports_a_wrong_number_of_rows_and_a_wrong_writer(self) -> None:
        found = [self.facts[0]._replace(rows=1), self.facts[1]._replace(writer="x")]
        compared = compare(self.facts[:2], found)
        self.assertEqual(compared.runs, [MismatchRun(Mismatch.DIFFERENT, 1, 2, 2)])

    def test_reports_facts_that_nobody_acknowledged(self) -> None:
        found = [fact(0), *self.facts[:3], fact(4), *self.facts[3:], fact(9)]
        compared = compare(self.facts, found)
        unexpected = [MismatchRun(Mismatch.UNEXPECTED, token, token, 1) for token in (0, 4, 9)]
        self.assertEqual(compared.runs, unexpected)

    def test_lists_a_bounded_number_of_runs_and_counts_all(self) -> None:
        facts = [fact(token) for token in range(1, 3 * MAX_RUNS)]
        compared = compare(facts, facts[::2])
        self.assertEqual(len(compared.runs), MAX_RUNS)
        self.assertEqual(compared.wrong, len(facts) - len(facts[::2]))

    @settings(max_examples=100)
    @given(st.sets(st.integers(1, 40)), st.sets(st.integers(1, 40)))
    def test_exactly_the_tokens_of_one_side_are_wrong(
        self, left: set[int], right: set[int]
    ) -> None:
        compared = compare([fact(t) for t in sorted(left)], [fact(t) for t in sorted(right)])
        self.assertEqual(compared.wrong, len(left ^ right))
        self.assertEqual(sum(each.facts for each in compared.runs), len(left ^ right))
        self.assertEqual(compared.facts, len(right))

    def test_the_digest_depends_on_every_cell(self) -> None:
        row = CATALOGUE[ORDERS].kinds[""]
        first = digest_fact(1, MASTER, [row("o1", "anvil", 1, None)])
        self.assertEqual(first, digest_fact(1, MASTER, [row("o1", "anvil", 1, None)]))
        for cells in (("o2", "anvil", 1, None), ("o1", "anvil", 1, {"a": 1})):
            self.assertNotEqual(first, digest_fact(1, MASTER, [row(*cells)]))


class DemoReport(TestCase):
    """From comparisons to a table and a verdict."""

    equal = ComparisonResult(3, 4, 0, [])

    def result(
        self, applied: ComparisonResult, *lagging: LaggingWorker, late: int = 0
    ) -> DemoResult:
        stream = StreamVerification(3, 4, self.equal, {"slow": applied, "legacy": None})
        counters = {name: Counter({"events": 1}) for name in COUNTERS}
        return DemoResult(
            appends=AppendSummary(1.0, 0, 0),
            streams={"events": stream},
            in_memory=frozenset(),
            counters={"slow": counters, "legacy": counters},
            out_of_order={"slow": Counter({"events": late}), "legacy": Counter()},
            positions={"events": {MASTER: {MASTER: 3, "(all)": 3}}},
            lagging=lagging,
        )

    def with_streams(
        self, rows: dict[str, int], wrong: str = "", workers: tuple[str, ...] = ("slow",)
    ) -> DemoResult:
        """A result with streams of so many rows, and a mismatch in one."""
        run = MismatchRun(Mismatch.MISSING, 1, 1, 1)
        streams = {}
        for name, number in rows.items():
            runs = [run] if name == wrong else []
            applied = ComparisonResult(number, number, len(runs), runs)
            equal = ComparisonResult(number, number, 0, [])
            stored = None if name == "typing" else equal
            by_worker = dict.fromkeys(workers, applied)
            streams[name] = StreamVerification(number, number, stored, by_worker)
        counters = {name: Counter(rows.keys()) for name in COUNTERS}
        return DemoResult(
            appends=AppendSummary(1.0, 4, 1),
            streams=streams,
            in_memory=frozenset({"typing"} & rows.keys()),
            counters=dict.fromkeys(workers, counters),
            out_of_order={name: Counter() for name in workers},
            positions={name: {} for name in rows},
            lagging=(),
        )

    def shown(self, result: DemoResult, show_all: bool = False, width: int = 200) -> str:
        parts = [*report(result, show_all), *closing(result, None, "--no-lake was given")]
        return rendered(parts, width)

    def test_equal_facts_are_verified(self) -> None:
        result = self.result(self.equal)
        self.assertEqual(result.problems, [])
        self.assertTrue(result.to_json()["equal"])
        self.assertIn("Verified, fact by fact:", self.shown(result))

    def test_a_mismatch_names_stream_worker_and_tokens(self) -> None:
        run = MismatchRun(Mismatch.MISSING, 2, 3, 2)
        result = self.result(ComparisonResult(1, 2, 2, [run]))
        problem = "events, worker slow: 2 facts at tokens 2 to 3 are missing"
        self.assertEqual(result.problems, [problem])
        self.assertEqual(result.to_json()["problems"], [problem])
        self.assertFalse(result.to_json()["equal"])
        shown = self.shown(result)
        self.assertIn(problem, shown)
        self.assertIn("FAILED", shown)
        self.assertNotIn("Verified,", shown)

    def test_mismatches_that_are_not_listed_are_counted(self) -> None:
        run = MismatchRun(Mismatch.MISSING, 2, 3, 2)
        result = self.result(ComparisonResult(1, 2, 9, [run]))
        self.assertIn("events, worker slow: and 7 more facts are wrong", result.problems)

    def test_a_worker_that_lags_is_a_problem(self) -> None:
        lagging = LaggingWorker("events", "slow", MASTER, 2, 3)
        result = self.result(self.equal, lagging)
        self.assertEqual(
            result.problems,
            ["events, worker slow: its position of writer master is 2, the master's 3"],
        )
        self.assertIn("1 problem:", self.shown(result))

    def test_a_worker_that_lags_in_a_stream_without_facts_is_a_problem(self) -> None:
        result = self.result(self.equal, LaggingWorker("groups", "slow", MASTER, 0, 1))
        self.assertEqual(len(result.problems), 1)

    def test_facts_out_of_order_are_a_problem(self) -> None:
        result = self.result(self.equal, late=2)
        problem = "events, worker slow: 2 facts applied out of order"
        self.assertEqual(result.problems, [problem])
        worker = result.to_json()["streams"]["events"]["workers"]["slow"]
        self.assertEqual(worker["out_of_order_facts"], 2)

    def test_shows_the_largest_streams_and_the_sum_of_the_others(self) -> None:
        rows = {f"s{n}": 10 * n for n in range(1, 9)} | {ORDERS: 1}
        lines = self.shown(self.with_streams(rows)).splitlines()
        cells = [line.split() for line in lines if " 361" not in line and line.count("  ") >= 2]
        self.assertEqual([c[0] for c in cells[1:6]], [ORDERS, "s8", "s7", "s6", "s5"])
        self.assertEqual(cells[6], ["4", "others", "(--all)", *["100"] * 3])
        self.assertIn(["total", *["361"] * 3], [line.split() for line in lines])

    def test_shows_every_stream_on_request(self) -> None:
        rows = {f"s{n}": 10 * n for n in range(1, 9)} | {ORDERS: 1}
        shown = self.shown(self.with_streams(rows), show_all=True)
        for name in rows:
            self.assertRegex(shown, rf"(?m)^{name} ")
        self.assertNotIn("others", shown)
        self.assertRegex(shown, r"(?m)^stream .* gaps$")

    def test_always_shows_a_stream_with_a_problem(self) -> None:
        rows = {f"s{n}": 10 * n for n in range(1, 9)} | {ORDERS: 1}
        shown = self.shown(self.with_streams(rows, wrong="s1"))
        self.assertRegex(shown, r"(?m)^s1 +10 ")
        self.assertIn("3 others", shown)

    def test_explains_every_total_that_is_smaller(self) -> None:
        shown = self.shown(self.with_streams({"events": 10, "typing": 3}))
        self.assertIn("typing: kept in memory, not stored", shown)
        shown = self.shown(self.result(self.equal))
        self.assertIn("events: not in the protocol of legacy (4 rows).", shown)

    def test_says_what_was_not_verified(self) -> None:
        shown = self.shown(self.with_streams({"events": 10}))
        for text in ("Not verified:", "The lake: --no-lake was given.", "failover", "interop"):
            self.assertIn(text, shown)

    def test_fits_into_80_columns(self) -> None:
        names = [stream.name for stream in CATALOGUE if stream.name in RECORDED]
        result = self.with_streams(dict.fromkeys(names, 6_300), workers=(*WORKERS, "writer"))
        for show_all in (False, True):
            lines = self.shown(result, show_all, width=80).splitlines()
            self.assertLessEqual(max(map(len, lines)), 80)
            self.assertNotIn("…", "".join(lines))

    def test_a_lake_that_differs_is_a_failure(self) -> None:
        lake = LakeResult({"events": 4}, ("events: 1 row is missing",), JobResult("t", (), ()))
        shown = rendered(closing(self.result(self.equal), lake, ""), 200)
        self.assertIn("FAILED", shown)
        self.assertIn("events: 1 row is missing", rendered(lake_report(lake, False), 200))

    def test_the_job_is_shown_with_its_largest_lines(self) -> None:
        lines = tuple((None if n % 2 else "2026-11-20", f"s{n}", n) for n in range(9))
        lake = LakeResult({}, (), JobResult("Activity", ("day", "stream", "rows"), lines))
        shown = rendered(lake_report(lake, False), 200)
        self.assertIn("s8", shown)
        self.assertNotIn("s3", shown)
        self.assertIn("(and 4 more lines with --all)", shown)
        self.assertIn("s0", rendered(lake_report(lake, True), 200))


class DemoProgressDisplay(TestCase):
    """Progress while the demo runs."""

    def test_shows_bars_on_a_terminal(self) -> None:
        console = Console(file=io.StringIO(), force_terminal=True, width=80, no_color=True)
        display = ProgressDisplay(console)
        display.log("worker [flaky] killed")
        display.update(50, 100, {"slow": WorkerProgress(20, 30, None)})
        display.close()
        shown = console.file.getvalue()  # type: ignore[attr-defined]
        for text in ("worker [flaky] killed", "appended", "lag 30 rows"):
            self.assertIn(text, shown)

    def test_shows_lines_elsewhere(self) -> None:
        console = Console(file=io.StringIO(), width=20)
        display = ProgressDisplay(console, line_interval_s=0.0)
        display.update(50, 100, {"slow": WorkerProgress(20, 0, "killed")})
        display.close()
        self.assertEqual(
            console.file.getvalue(),  # type: ignore[attr-defined]
            "  50 of 100 rows appended; slow applied 20 (killed)\n",
        )


def rendered(parts: Iterable[RenderableType], width: int) -> str:
    """What a console of this width shows."""
    console = Console(width=width, no_color=True)
    with console.capture() as captured:
        console.print(*parts, sep="\n")
    return captured.get()


class TrafficOfTheDemo(TestCase):
    """The requests that the demo sends."""

    def requests(self, rows: int) -> list[AppendRequest]:
        return list(Traffic(CATALOGUE, rows).requests())

    def test_has_the_requested_length_and_is_repeatable(self) -> None:
        traffic = Traffic(CATALOGUE, 20_000)
        requests = list(traffic.requests())
        self.assertEqual(requests, list(traffic.requests()))
        self.assertEqual([request.number for request in requests], list(range(len(requests))))
        self.assertLess(abs(sum(request.rows for request in requests) - 20_000), 100)

    def test_appends_in_memory_streams_before_the_restart(self) -> None:
        requests = self.requests(20_000)
        rows = last = 0
        for request in requests:
            rows += request.rows
            self.assertEqual(request.in_memory, CATALOGUE[request.stream].in_memory)
            if request.in_memory:
                last = rows
        self.assertTrue(any(request.in_memory for request in requests))
        self.assertLess(last, 20_000 * IN_MEMORY_SHARE + 100)

    def test_every_row_fits_its_stream(self) -> None:
        traffic = Traffic(CATALOGUE, 20_000)
        seen = set()
        for request in traffic.requests():
            rows = sum(map(len, traffic.decode(request)))
            self.assertEqual(rows, request.rows)
            self.assertEqual(
                json.loads(request.body)["facts"],
                [[json.loads(row) for row in fact] for fact in request.facts],
            )
            seen.add(request.stream)
        self.assertGreater(len(seen), 14)
        self.assertIn(ORDERS, seen)


class DeploymentDirectory(TestCase):
    """The files of a deployment."""

    def setUp(self) -> None:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.deployment = Deployment(Path(directory.name) / "demo")

    def test_writes_configurations_that_load(self) -> None:
        self.deployment.write()
        master = load_master([self.deployment.config(MASTER)])
        self.assertEqual(master.listeners[0].port, self.deployment.port)
        for worker in self.deployment.workers:
            config = load_worker([self.deployment.config(worker.name)])
            self.assertEqual(
                (config.name_as_follower, config.dialect), (worker.name, worker.dialect)
            )
            self.assertEqual(config.master.port, self.deployment.port)
        ports = {
            self.deployment.port,
            self.deployment.http_port,
            *(each.port for each in self.deployment.workers),
        }
        self.assertEqual(len(ports), 5)

    def test_configures_an_existing_redis(self) -> None:
        directory = self.deployment.directory.parent
        secret = directory / "secret"
        secret.touch(mode=0o600)
        secret.write_text("sesame\n")
        for url in (
            "redis://me@127.0.0.1:1234/5",
            "rediss://a.example?ca_file=ca.pem",
            "unix:///a",
        ):
            with self.subTest(url):
                redis = redis_from_options(url, secret)
                deployment = Deployment(directory / f"demo-{len(url)}", redis)
                deployment.write()
                for config in (
                    load_master([deployment.config(MASTER)]),
                    load_worker([deployment.config("slow")]),
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
                self.assertIsNone(load_worker([deployment.config("legacy")]).redis)

    def test_refuses_a_directory_with_content(self) -> None:
        self.deployment.write()
        with self.assertRaises(NotEmpty):
            self.deployment.write()

    def test_prints_commands_to_inspect_the_processes(self) -> None:
        text = instructions(self.deployment)
        self.assertIn(
            f"printf 'REPLICATE events NOW\\n' | nc 127.0.0.1 {self.deployment.port}\n", text
        )
        self.assertIn(f"printf 'REPLICATE\\n' | nc 127.0.0.1 {self.deployment.port}\n", text)


class MissedFacts(CliCase):
    """Where a worker fetches missed facts."""

    async def test_fetches_each_stream_from_its_source(self) -> None:
        class Named:
            def __init__(self, name: str) -> None:
                self.asked: list[str] = []

            async def page(
                self, stream: Stream, span: Range, writer: str | None, limit: int
            ) -> Page:
                self.asked.append(stream.name)
                return Page((), span.upto, is_limited=False)

        tables, memory = Named("tables"), Named("memory")
        source = RoutedSource(tables, memory)
        for name in ("events", "typing"):
            await source.page(CATALOGUE[name], Range(0, 5), MASTER, 10)
        self.assertEqual((tables.asked, memory.asked), (["events"], ["typing"]))

    async def test_reports_unreachable_facts_as_trimmed(self) -> None:
        page = await UnreachableSource().page(CATALOGUE["typing"], Range(5, 5), MASTER, 10)
        self.assertEqual(page, Page((), 5, is_limited=False))
        with self.assertRaises(Trimmed) as caught:
            await UnreachableSource().page(CATALOGUE["typing"], Range(0, 5), MASTER, 10)
        self.assertEqual(caught.exception.facts["trimmed"], 5)


class SuspendedStore(MemoryStore):
    """A store in which an append waits for the test before it begins."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.waiting: Deferred[None] = Deferred()

    async def step(self, what: str) -> None:
        """Wait, where an append begins."""
        if what == "append":
            await self.waiting


class DemoRegressions(CliCase):
    """Defects that the demo has found."""

    async def test_an_append_interrupted_by_shutdown_can_be_retried(self) -> None:
        stream = CATALOGUE["orders"]
        scheduler = TwistedScheduler(Clock())
        store = SuspendedStore(scheduler)
        announcer = Announcer(scheduler, store, [stream], Publisher(scheduler, {}), NullLog())
        writer = StreamWriter(scheduler, store, MASTER, [stream], announcer, NullLog())
        await writer.start()
        row = stream.kinds[""]("o1", "anvil", 1, None)
        appended = Deferred.fromCoroutine(writer.append(stream, [[row]]))
        await writer.stop()
        store.waiting.callback(None)
        with self.assertRaises(WriterAway):
            await appended

    async def test_an_empty_in_memory_stream_starts_at_0(self) -> None:
        stream = CATALOGUE["typing"]
        scheduler = TwistedScheduler(Clock())
        store = MemoryStore(scheduler)
        announcer = Announcer(scheduler, store, [stream], Publisher(scheduler, {}), NullLog())
        await StreamWriter(scheduler, store, MASTER, [stream], announcer, NullLog()).start()
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


class DaemonProcesses(CliCase):
    """Daemons as child processes."""

    async def test_reports_a_daemon_that_cannot_run_with_its_output(self) -> None:
        config, log = self.directory / "none.yaml", self.directory / "log"
        self.enterContext(patch.dict(os.environ, PYTHONPATH=str(REPOSITORY)))
        process = DaemonSubprocess(TwistedScheduler(reactor), "master", "m", config, log)
        process.check()
        await process.stop()  # never started: fine
        process.start()
        await process.wait()
        with self.assertRaises(DaemonEnded) as caught:
            process.check()
        self.assertIn("none.yaml", str(caught.exception))
        self.assertIn("exit status 2", str(caught.exception))

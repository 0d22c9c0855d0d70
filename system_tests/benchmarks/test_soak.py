"""A soak that is short: few processes, every kind of accident once. And what it would find."""

from __future__ import annotations

from itertools import count, islice
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, mkdtemp
from typing import Literal
from unittest import TestCase as PlainTestCase

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.trial.unittest import TestCase

from benchmarks.__main__ import updated_results
from benchmarks.harness import Row
from benchmarks.soak import Soak
from benchmarks.soak_accidents import REDIS, Kind, accidents, failing_over
from benchmarks.soak_audit import Positions, expected_positions
from benchmarks.soak_recorder import deduplicated
from benchmarks.soak_site import PLAIN_ONLY, SoakSite
from synrepl.cli.demo.deployment import WorkerSpec
from synrepl.testing.redis import RedisTestServer
from synrepl.testing.standby import PrimaryAndStandby

NAMES = ("master", "w1", "w2")


class ShortSoak(TestCase):
    """Real processes."""

    timeout = 480

    async def test_nothing_is_lost(self) -> None:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        redis = RedisTestServer()
        self.addCleanup(redis.close)
        data = Path(mkdtemp(prefix="synrepl-test-"))
        data.chmod(0o755)
        self.addCleanup(rmtree, data, ignore_errors=True)
        servers = PrimaryAndStandby(data / "servers")
        self.addCleanup(servers.stop)
        dsn = servers.start()
        site = SoakSite(Path(directory.name), dsn, redis.path, 2, (PLAIN_ONLY, "legacy"))
        messages: list[str] = []
        begun = count()
        planned = failing_over(
            islice(accidents(5, list(site.urls), 3.0), 9), lambda: next(begun) == 4, 2.0
        )
        found = await Soak(reactor, site, redis, servers, messages.append).play(planned)
        self.assertEqual(found.problems, [], messages)
        self.assertEqual(set(found.accidents), set(map(str, Kind)))
        self.assertGreater(found.facts, 100)
        self.assertGreater(found.lost, 0)


class AccidentSequence(PlainTestCase):
    """Accidents."""

    @settings(max_examples=20)
    @given(st.integers(0, 10**6), st.floats(0, 30))
    def test_is_the_same_for_a_seed_and_has_all_kinds_in_each_round(
        self, seed: int, most: float
    ) -> None:
        drawn = list(islice(accidents(seed, NAMES, most), 27))
        self.assertEqual(drawn, list(islice(accidents(seed, NAMES, most), 27)))
        for nth in (0, 9, 18):
            self.assertEqual(
                {each.kind for each in drawn[nth : nth + 9]}, set(Kind) - {Kind.FAILED_OVER}
            )
        for each in drawn:
            self.assertIn(each.victim, (*NAMES, REDIS))
            self.assertTrue(0 <= each.for_s <= most)
        victims = [each.victim for each in drawn if each.victim != REDIS]
        self.assertEqual({victims.count(name) for name in NAMES}, {len(victims) // len(NAMES)})


class ExpectedPositions(PlainTestCase):
    """The final positions expected of all processes."""

    def test_are_the_masters_over_tcp_and_each_writers_over_redis(self) -> None:
        positions: dict[str, Positions] = {
            "master": {"orders": {"(all)": 9, "master": 9, "w1": 5}},
            "w1": {"orders": {"w1": 8}},
        }

        def places(over_redis: bool, dialect: Literal["modern", "legacy"]) -> set[tuple[str, int]]:
            worker = WorkerSpec("f", dialect, "0ms", 1, over_redis)
            return {(writer, token) for _, writer, token in expected_positions(worker, positions)}

        self.assertEqual(places(True, "modern"), {("master", 9), ("w1", 8)})
        self.assertEqual(places(False, "modern"), {("master", 9), ("w1", 5)})
        self.assertEqual(places(False, "legacy"), {("(all)", 9)})


class RecordedFactsTests(PlainTestCase):
    """What a handler without transactions wrote down."""

    def line(self, token: int, writer: str = "w1", digest: str = "00") -> str:
        return f"orders\t{token}\t{writer}\t1\t{digest}\t.\n"

    def test_each_fact_is_kept_once_in_order_of_first_arrival(self) -> None:
        recorded = deduplicated([self.line(n) for n in (1, 2, 1, 2, 3)] + [self.line(1, "w2")])
        found = [(each.token, each.writer) for each in recorded.entries["orders"]]
        self.assertEqual(found, [(1, "w1"), (2, "w1"), (3, "w1"), (1, "w2")])
        self.assertEqual((recorded.repeated, recorded.changed), (2, 0))

    def test_a_repeated_fact_with_other_rows_is_counted_as_changed(self) -> None:
        recorded = deduplicated([self.line(1), self.line(1, digest="01")])
        self.assertEqual((recorded.repeated, recorded.changed), (1, 1))

    def test_unfinished_lines_are_ignored(self) -> None:
        whole = self.line(1)
        torn = [f"{whole[:length]}\n" for length in range(len(whole) - 1)]
        recorded = deduplicated([self.line(2), *torn, whole[:-2]])
        self.assertEqual([each.token for each in recorded.entries["orders"]], [2])


class ResultsFile(PlainTestCase):
    """The file with all results."""

    def test_sections_that_did_not_run_stay(self) -> None:
        text = "# Results\n\n- a\n\n## one\n\nold\n\n## two\n\nold\n"
        once_more = updated_results(text, {"two": [Row("x", 0, "y")]}, ["two"])
        self.assertTrue(once_more.startswith("# Results\n\n- a\n\n## one\n\nold\n\n## two\n\nOf "))
        self.assertEqual(once_more.count("old"), 1)
        with_soak = updated_results(text, {"soak": [Row("x", 0, "y")]}, ["soak"])
        self.assertTrue(with_soak.startswith(text))
        everything = updated_results(with_soak, {"one": [Row("z", 0, "y")]}, [])
        self.assertEqual(everything.count("## "), 2)
        self.assertTrue(everything.endswith(with_soak.partition("## soak")[2]))

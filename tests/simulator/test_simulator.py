"""The simulator itself: it repeats itself exactly, and tells its story."""

from __future__ import annotations

import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from typing import Any
from unittest import TestCase
from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from simulator import __main__ as command
from simulator.clock import CURRENT, EPOCH, Process, VirtualClock
from simulator.product import Product
from simulator.simulation import simulate
from synrepl.positions.cursor import Cursor


class HashShowingProduct(Product):
    """The product; it prints whether the hashes of strings are random."""

    def __init__(self) -> None:
        super().__init__()
        print(f"hash randomization {sys.flags.hash_randomization}")


class Determinism(TestCase):
    """One seed, one story."""

    def test_the_same_seed_gives_the_same_transcript(self) -> None:
        for seed in (3, 4):
            first, second = simulate(seed, Product()), simulate(seed, Product())
            self.assertEqual(list(first.transcript.lines()), list(second.transcript.lines()))
            self.assertEqual(first.counts, second.counts)

    def test_another_process_gives_the_same_transcript(self) -> None:
        for arguments in (["--seed", "5"], ["--seed", "3", "--lose-commits"]):
            stories = {self.story(hashes, *arguments) for hashes in ("0", "1")}
            self.assertEqual(len(stories), 1, arguments)
            self.assertIn("all rules hold", stories.pop())

    def test_a_process_fixes_the_order_of_sets_unless_it_is_given(self) -> None:
        factory = f"{__name__}:{HashShowingProduct.__name__}"
        arguments = ["--seed", "1", "--steps", "1", "--service-factory", factory]
        for given, randomized in ((None, 0), ("random", 0), ("0", 0), ("1", 1)):
            self.assertIn(f"hash randomization {randomized}\n", self.story(given, *arguments))

    def story(self, hashes: str | None, *arguments: str) -> str:
        """What a process says whose sets and hashes are of this order; None: it is not given."""
        path = {"PYTHONPATH": ":".join(sys.path)}
        return subprocess.run(
            [sys.executable, "-m", command.__name__, *arguments, "--verbose"],
            env=path if hashes is None else {**path, "PYTHONHASHSEED": hashes},
            capture_output=True,
            check=True,
            text=True,
        ).stdout

    def test_other_seeds_give_other_runs(self) -> None:
        self.assertNotEqual(simulate(3, Product()).counts, simulate(4, Product()).counts)


class SimulatorCommandLine(TestCase):
    """``python -m simulator``."""

    def run_command(self, *arguments: str) -> tuple[int, str]:
        with redirect_stdout(StringIO()) as out:
            code = command.main([*arguments, "--steps", "20"])
        return code, out.getvalue()

    def test_prints_one_line_for_a_seed_without_violations(self) -> None:
        code, out = self.run_command("--seed", "1")
        self.assertEqual(code, 0)
        self.assertIn("seed 1: all rules hold", out)
        self.assertNotIn("is ready", out)

    def test_prints_the_transcript_when_verbose(self) -> None:
        code, out = self.run_command("--seed", "1", "--verbose")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"(?m)^ +0\.\d+  master +is ready$")
        self.assertRegex(out, r"(?m)^ +0\.0000  plan +writers: master, writer1")

    def test_runs_a_range_of_seeds(self) -> None:
        code, out = self.run_command("--seeds", "1..3")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"3 seeds, 0 broken, [0-9.]+ seeds per CPU second")

    def test_prints_the_transcript_of_a_seed_with_violations(self) -> None:
        real = Cursor.on_position

        def on_position(cursor: Cursor, prev: int | None, new: int) -> Any:
            return real(cursor, cursor.position, new)  # so no gap is detected

        with patch.object(Cursor, "on_position", on_position):
            code, out = self.run_command("--seeds", "1..40")
            self.assertEqual(code, 1)
            seed = out.partition("seed ")[2].partition(":")[0]
            code, out = self.run_command("--seed", seed)
        self.assertEqual(code, 1)
        self.assertIn("BROKEN R3", out)
        self.assertIn("is ready", out)

    def test_refuses_wrong_arguments(self) -> None:
        for arguments in (
            [],
            ["--seed", "x"],
            ["--seeds", "3..1"],
            ["--seed", "1", "--service-factory", "nowhere:Nobody"],
            ["--seed", "1", "--rooms", "--lose-commits"],
            ["--seed", "1", "--sending", "--lose-commits"],
            ["--seed", "1", "--sending", "--rooms"],
        ):
            with self.subTest(arguments), patch("sys.stderr", StringIO()):
                with self.assertRaises(SystemExit) as exited:
                    command.main(arguments)
                self.assertEqual(exited.exception.code, 2)


class ProcessLifetime(TestCase):
    """A process that was killed stays dead."""

    def setUp(self) -> None:
        self.clock = VirtualClock()
        self.failures: list[str] = []
        self.process = Process(self.clock, "somebody", self.failed, lambda: 0.0)
        self.seen: list[str] = []

    def failed(self, name: str, failure: Failure) -> None:
        self.failures.append(f"{name}: {failure.getErrorMessage()}")

    def run_all(self) -> None:
        while self.clock.run_next(EPOCH + 100):
            pass

    async def work(self) -> None:
        try:
            self.seen.append(CURRENT.get().name)
            await self.process.sleep(1)
            self.seen.append("woke up")
        finally:
            self.seen.append("cleaned up")

    def test_a_live_process_runs_its_coroutines(self) -> None:
        self.process.spawn("work", self.work())
        self.run_all()
        self.assertEqual(self.seen, ["somebody", "woke up", "cleaned up"])

    def test_a_killed_process_runs_nothing(self) -> None:
        self.process.spawn("work", self.work())
        self.process.callLater(1, self.seen.append, "called")
        self.process.kill()
        self.process.spawn("more work", self.work())
        self.run_all()
        self.assertEqual(self.seen, ["somebody"])
        self.process.dispose()
        self.assertEqual(self.seen, ["somebody", "cleaned up"])

    def test_a_coroutine_that_is_closed_resumes_no_other_one(self) -> None:
        released: Deferred[None] = Deferred()

        async def wait() -> None:
            await released
            self.seen.append("went on")

        async def hold() -> None:
            try:
                await self.process.sleep(1)
            finally:
                released.callback(None)

        self.process.spawn("wait", wait())
        self.process.spawn("hold", hold())
        self.process.dispose()
        self.assertEqual((self.seen, self.failures), ([], []))

    def test_errors_of_coroutines_are_reported(self) -> None:
        async def fail() -> None:
            raise ValueError("no")

        self.process.spawn("fail", fail())
        self.assertEqual(self.failures, ["somebody: fail: no"])

    def test_calls_run_in_the_order_of_their_times(self) -> None:
        for delay, name in ((0.2, "late"), (0.1, "first"), (0.1, "second"), (0, "now")):
            self.clock.callLater(delay, self.seen.append, name)
        taken_back = self.clock.callLater(0.1, self.seen.append, "never")
        taken_back.cancel()
        self.assertFalse(taken_back.active())
        self.assertTrue(self.clock.run_next(EPOCH))
        self.assertFalse(self.clock.run_next(EPOCH + 0.05))
        self.assertEqual((self.seen, self.clock.seconds()), (["now"], EPOCH + 0.05))
        self.run_all()
        self.assertEqual(self.seen, ["now", "first", "second", "late"])

    def test_a_sleep_of_a_killed_process_never_ends(self) -> None:
        waiting: Deferred[None] = self.process.sleep(1)
        waiting.addCallback(lambda _: self.seen.append("kept"))
        self.process.kill()
        self.run_all()
        self.assertEqual(self.seen, [])

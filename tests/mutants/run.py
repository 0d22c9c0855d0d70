"""Try mutants on copies of the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.mutants.mutant import REPOSITORY, DoesNotApply, Mutant

#: Seconds after which tests that do not end have noticed something.
PATIENCE = 600


class Outcome(NamedTuple):
    """The outcome of a mutant.

    :ivar caught_by: the test that failed; None if none did, or the mutant could not be tried
    :ivar reason: how it failed, or why the mutant could not be tried
    """

    caught_by: str | None
    reason: str


class Trials:
    """Some copies of the package, each used by one trial at a time."""

    def __init__(self, copies: list[Path]) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        for copy in copies:
            self._free.put(copy)

    def try_one(self, mutant: Mutant) -> Outcome:
        """Run a mutant's tests with the mutant in place."""
        root = self._free.get()
        try:
            path = mutant.source(root)
            sound = path.read_text(encoding="utf-8") if path.exists() else ""
            try:
                path.write_text(mutant.apply(root), encoding="utf-8")
                return run_tests(root, mutant.tests)
            except DoesNotApply as error:
                return Outcome(None, str(error))
            finally:
                if sound:
                    path.write_text(sound, encoding="utf-8")
        finally:
            self._free.put(root)

    def sound(self, tests: tuple[str, ...]) -> Outcome:
        """Run tests without a mutant."""
        root = self._free.get()
        try:
            return run_tests(root, tests)
        finally:
            self._free.put(root)


@contextmanager
def trials(jobs: int) -> Iterator[Trials]:
    """Copies for as many trials at a time."""
    with TemporaryDirectory(prefix="synrepl-mutants-") as scratch:
        copies = [Path(scratch) / str(number) for number in range(jobs)]
        for copy in copies:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / "synrepl", copy / "synrepl", ignore=ignored)
        yield Trials(copies)


def outcomes(mutants: Iterable[Mutant], jobs: int) -> Iterator[tuple[Mutant, Outcome]]:
    """Try all mutants, some at a time; yields the outcomes in order."""
    chosen = list(mutants)
    with trials(jobs) as room, ThreadPoolExecutor(jobs) as pool:
        yield from zip(chosen, pool.map(room.try_one, chosen), strict=True)


def failing_without(mutants: Iterable[Mutant], jobs: int) -> dict[str, Outcome]:
    """Which of the tests fail with nothing changed."""
    names = sorted({test for mutant in mutants for test in mutant.tests})
    with trials(jobs) as room, ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda name: room.sound((name,)), names)
        return {
            name: outcome
            for name, outcome in zip(names, found, strict=True)
            if outcome.caught_by is not None or outcome.reason
        }


def run_tests(root: Path, tests: tuple[str, ...]) -> Outcome:
    """Run tests on the package below ``root`` until one fails."""
    # Compiled files go by time and size of the source, which a mutant may keep.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(root), str(REPOSITORY)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "tests.mutants.child", str(root), *tests]
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return Outcome(tests[0], f"it did not end within {PATIENCE} seconds")
    if done.returncode:
        return Outcome(None, "the tests could not be run: " + done.stderr.strip()[-500:])
    result = json.loads(done.stdout.splitlines()[-1])
    if not result["ran"]:
        return Outcome(None, "no test ran")
    return Outcome(result["failed"], result["why"])

"""Child processes of a benchmark, which report JSON objects, one per line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent

#: Maximum lifetime of a child process, in seconds, unless it says otherwise.
LONGEST_LIFE = 240


class ChildFailed(Exception):
    """A child process ended before it reported."""


class Child:
    """``python -m benchmarks.<module> <arguments>``, as a ``with`` block that ends it."""

    def __init__(self, module: str, *arguments: object) -> None:
        self._module = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Its process ID."""
        return self._process.pid

    def receive(self) -> dict[str, Any]:
        """Its next report.

        :raises ChildFailed: it ended instead
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ChildFailed(f"benchmarks.{self._module} ended with {self._process.wait()}")
        message: dict[str, Any] = json.loads(line)
        return message

    def resume(self) -> None:
        """Send a line, for which the child waits."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def command(self, line: str) -> dict[str, Any]:
        """Send a line; the report that follows."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.receive()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def limit_lifetime(seconds: int = LONGEST_LIFE) -> None:
    """End this process after the maximum lifetime; call it first in a child."""
    signal.alarm(seconds)


def report(facts: Mapping[str, Any]) -> None:
    """Report to the parent."""
    print(json.dumps(facts), flush=True)

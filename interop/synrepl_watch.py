"""``synrepl watch`` and ``synrepl doctor`` beside a real Synapse, from the outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interop.processes import LOOPBACK, Process
from interop.redis_wire import Key
from interop.synrepl_processes import environment

#: From which age in seconds on a transaction is told of, unless one says otherwise.
OLDER_S = 60.0

_TIME_LIMIT_S = 60


class SynreplWatch:
    """``synrepl watch --redis`` as a process.

    :param dsn: of Synapse's database
    """

    def __init__(self, directory: Path, redis: int, server_name: str, dsn: str) -> None:
        self._output = directory / "watch.jsonl"
        self._log = directory / "watch.log"
        self.process = Process(
            "our watch",
            Path(sys.executable),
            [
                *("-m", "synrepl", "watch", "--json"),
                *("--redis", f"redis://{LOOPBACK}:{redis}", "--server-name", server_name),
            ],
            directory,
            self._output,
            {**environment(), "SYNREPL_DATABASE": dsn},
            self._log,
        )

    def samples(self) -> list[WatchSample]:
        """Every look so far."""
        return [WatchSample(json.loads(line)) for line in self._lines()]

    def last(self) -> WatchSample | None:
        """The last look; None before the first."""
        lines = self._lines()
        return WatchSample(json.loads(lines[-1])) if lines else None

    def said(self) -> list[str]:
        """What it printed on standard error."""
        return self._log.read_text(errors="replace").splitlines()

    def _lines(self) -> list[bytes]:
        """What it printed, but for a line that it is in the middle of."""
        self.process.still_runs()
        data = self._output.read_bytes()
        return data[: data.rfind(b"\n") + 1].splitlines()


@dataclass(frozen=True, slots=True)
class WatchSample:
    """One line of ``synrepl watch --json``."""

    report: Mapping[str, Any]

    @property
    def well(self) -> bool:
        """Connected, the database read, and nobody silent."""
        return bool(self.report["connected"]) and not self.trouble and not self.alarms

    @property
    def trouble(self) -> list[str]:
        """Why nothing is heard, or read in the database."""
        found: list[str] = self.report["trouble"]
        return found

    @property
    def alarms(self) -> list[str]:
        """Each in a sentence."""
        found: list[str] = self.report["alarms"]
        return found

    def by_key(self, what: str) -> dict[Key, Any]:
        """One of the numbers, by stream and writer, where there is one."""
        return {
            (each["stream"], each["writer"]): each[what]
            for each in self.report["streams"]
            if each[what] is not None
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What ``synrepl doctor database`` said.

    :ivar findings: what is wrong, or worth knowing
    """

    status: int
    findings: Sequence[Mapping[str, Any]]

    def names(self, backend: int, process: str) -> bool:
        """Whether it tells of a transaction of that backend, and whose it is."""
        return any(
            found["where"] == f"backend {backend}" and f"({process})" in found["what"]
            for found in self.findings
        )

    def __str__(self) -> str:
        findings = "; ".join(f"{found['id']} ({found['where']})" for found in self.findings)
        return f"status {self.status}, {findings or 'nothing'}"


def doctor(dsn: str, older: float) -> Diagnosis:
    """Ask the doctor.

    :param dsn: of Synapse's database
    :param older: from which age in seconds on a transaction is told of
    """
    done = subprocess.run(
        [sys.executable, "-m", "synrepl", "doctor", "database", "--json", "--older", str(older)],
        capture_output=True,
        text=True,
        timeout=_TIME_LIMIT_S,
        check=False,
        env={**os.environ, **environment(), "SYNREPL_DATABASE": dsn},
    )
    if not done.stdout:
        return Diagnosis(done.returncode, [{"id": done.stderr.strip(), "where": "", "what": ""}])
    return Diagnosis(done.returncode, json.loads(done.stdout)["findings"])

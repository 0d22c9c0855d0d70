"""Runs ``synrepl watch`` and ``synrepl doctor`` as subprocesses beside a real Synapse."""

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

#: Default of the doctor's ``--older``, in seconds.
OLDER_S = 60.0

_TIME_LIMIT_S = 60


class SynreplWatch:
    """``synrepl watch --redis`` as a process.

    :param dsn: DSN of Synapse's database
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
        """All samples so far."""
        return [WatchSample(json.loads(line)) for line in self._lines()]

    def last(self) -> WatchSample | None:
        """The last sample; None before the first."""
        lines = self._lines()
        return WatchSample(json.loads(lines[-1])) if lines else None

    def said(self) -> list[str]:
        """The lines that it printed on standard error."""
        return self._log.read_text(errors="replace").splitlines()

    def _lines(self) -> list[bytes]:
        """The lines that it printed, without an incomplete last one."""
        self.process.still_runs()
        data = self._output.read_bytes()
        return data[: data.rfind(b"\n") + 1].splitlines()


@dataclass(frozen=True, slots=True)
class WatchSample:
    """One line of ``synrepl watch --json``."""

    report: Mapping[str, Any]

    @property
    def well(self) -> bool:
        """True if it is connected, has read the database, and reports no alarm."""
        return bool(self.report["connected"]) and not self.trouble and not self.alarms

    @property
    def trouble(self) -> list[str]:
        """Reasons why it cannot receive, or read the database."""
        found: list[str] = self.report["trouble"]
        return found

    @property
    def alarms(self) -> list[str]:
        """The alarms, each a sentence."""
        found: list[str] = self.report["alarms"]
        return found

    def by_key(self, what: str) -> dict[Key, Any]:
        """The values of one field by stream and writer, without nulls."""
        return {
            (each["stream"], each["writer"]): each[what]
            for each in self.report["streams"]
            if each[what] is not None
        }


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The output of ``synrepl doctor database``.

    :ivar status: its exit status
    :ivar findings: problems and remarks
    """

    status: int
    findings: Sequence[Mapping[str, Any]]

    def names(self, backend: int, process: str) -> bool:
        """True if a finding names a backend and the process that it belongs to."""
        return any(
            found["where"] == f"backend {backend}" and f"({process})" in found["what"]
            for found in self.findings
        )

    def __str__(self) -> str:
        findings = "; ".join(f"{found['id']} ({found['where']})" for found in self.findings)
        return f"status {self.status}, {findings or 'nothing'}"


def doctor(dsn: str, older: float) -> Diagnosis:
    """Run ``synrepl doctor database``.

    :param dsn: DSN of Synapse's database
    :param older: minimum age in seconds of the transactions that it reports
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

"""CPU time of a PostgreSQL server on this machine, from /proc."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import process_time

import psycopg2

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class ServerProcesses:
    """The processes of a server.

    :param dsn: of one of its databases
    """

    def __init__(self, dsn: str) -> None:
        connection = psycopg2.connect(dsn)
        backend = connection.info.backend_pid
        self._postmaster = int(_stat(backend)[1])
        connection.close()

    def cpu(self) -> float:
        """CPU seconds of all its processes so far, including those that have ended."""
        total = _cpu(self._postmaster)
        ended = sum(map(int, _stat(self._postmaster)[13:15])) * _TICK_S
        for each in Path("/proc").iterdir():
            if each.name.isdigit():
                try:
                    if int(_stat(int(each.name))[1]) == self._postmaster:
                        total += _cpu(int(each.name))
                except OSError:  # ended meanwhile
                    continue
        return total + ended

    def with_ours(self, work: Callable[[], object], times: int) -> float:
        """CPU seconds of one run of some work, in this process and in those of the server."""
        before = process_time() + self.cpu()
        for _ in range(times):
            work()
        return (process_time() + self.cpu() - before) / times


def _cpu(pid: int) -> float:
    """CPU seconds of a process of one thread, more exactly than in ticks."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2 :].split()

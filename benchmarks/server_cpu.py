"""CPU time of a PostgreSQL server on this machine, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

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
        total = sum(map(int, _stat(self._postmaster)[11:15]))
        for each in Path("/proc").iterdir():
            if each.name.isdigit():
                try:
                    words = _stat(int(each.name))
                except OSError:  # ended meanwhile
                    continue
                if int(words[1]) == self._postmaster:
                    total += sum(map(int, words[11:13]))
        return total * _TICK_S


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2 :].split()

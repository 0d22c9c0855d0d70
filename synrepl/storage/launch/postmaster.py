"""``postmaster.pid``: the state of a server, and ending one that a dead owner left running."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from synrepl.storage.launch.child import Unstoppable

_PID, _STATUS = 0, 7  # lines of the file, see PostgreSQL's pidfile.h


class PidFile:
    """The pid file of a cluster folder."""

    def __init__(self, cluster: Path) -> None:
        self._cluster = cluster
        self._path = cluster / "postmaster.pid"

    def is_ready(self, pid: int) -> bool:
        """Whether the server with this process ID reports that it accepts connections."""
        lines = self._lines()
        return (
            len(lines) > _STATUS
            and lines[_PID].strip() == str(pid)
            and lines[_STATUS].strip() == "ready"
        )

    def stop_previous_server(self, steps: Sequence[tuple[signal.Signals, float]]) -> None:
        """End a server of a former owner that still runs on the cluster.

        The caller must hold the lock on the data folder. A file whose process is gone
        is left to Postgres, which also looks for orphans that still use the shared
        memory. A process ID that now belongs to another program is replaced by our
        own, because Postgres treats its parent's ID as stale.

        :raises Unstoppable: the server does not end
        """
        lines = self._lines()
        pid = int(lines[_PID]) if lines and lines[_PID].strip().isdigit() else 0
        if not pid or sys.platform != "linux":
            return  # elsewhere Postgres itself refuses when another one runs
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if not self._works_here(pid):
                self._path.write_text("\n".join([str(os.getpid()), *lines[1:], ""]))
                return
            _end(handle, pid, steps)
        finally:
            os.close(handle)

    def _works_here(self, pid: int) -> bool:
        try:
            program = Path(f"/proc/{pid}/exe").readlink().name
            return program.startswith("postgres") and Path(f"/proc/{pid}/cwd").samefile(
                self._cluster
            )
        except OSError:
            return False

    def _lines(self) -> list[str]:
        with suppress(OSError):
            return self._path.read_text(errors="replace").splitlines()
        return []


def _end(handle: int, pid: int, steps: Sequence[tuple[signal.Signals, float]]) -> None:
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    for number, patience_s in steps:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
        if waiting.poll(patience_s * 1000):
            return
    raise Unstoppable(pid=pid, program="postgres")

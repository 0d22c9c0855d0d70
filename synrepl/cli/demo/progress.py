"""Progress of the processes: polled over HTTP, and shown as bars on a terminal or as lines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from synrepl.client.client import Client
from synrepl.client.errors import ServerBusy, ServerUnreachable
from synrepl.core.tokens import Token
from synrepl.services.sources import LINEAR
from synrepl.services.status.stream_progress import writer_label

#: The counters in a worker's status that the demo uses; each counts by stream.
COUNTERS = ("rows", "duplicates", "gaps", "fetched_rows", "resets")

#: Seconds between two lines of progress where there is no terminal.
LINE_INTERVAL_S = 5.0


class StatusPoller:
    """Polls the status of a process, and keeps its counters across restarts.

    :ivar status: the latest status; None before the first one, also after a restart
    :ivar unreachable: whether the latest poll failed
    """

    def __init__(self, url: str) -> None:
        self._client = Client(url, timeout_s=10.0, retries=False)
        self._before_restart: dict[str, Counter[str]] = {name: Counter() for name in COUNTERS}
        self.status: dict[str, Any] | None = None
        self.unreachable = True

    def is_ready(self) -> bool:
        """Whether the process reports that it is ready; blocks."""
        try:
            return bool(self._client.ready()["ready"])
        except (ServerUnreachable, ServerBusy):
            return False

    def poll(self) -> None:
        """Fetch the status; blocks."""
        try:
            self.status = self._client.status()
            self.unreachable = False
        except (ServerUnreachable, ServerBusy):
            self.unreachable = True

    def note_restart(self, rows: Counter[str] | None = None) -> None:
        """Expect the counters to start at 0 again; they are added to those of the latest poll.

        :param rows: the exact value of the counter ``rows``, if known
        """
        for name in COUNTERS:
            self._before_restart[name] = self.counter(name)
        if rows is not None:
            self._before_restart["rows"] = rows
        self.status = None
        self.unreachable = True

    def counter(self, name: str) -> Counter[str]:
        """One of :data:`COUNTERS`, by stream; a lower bound if the process was killed."""
        counts = {} if self.status is None else self.status.get("counts", {})
        since_restart: Mapping[str, int] = counts.get(name, {})
        return self._before_restart[name] + Counter(since_restart)

    def positions(self, stream: str) -> dict[str, Token | None]:
        """Positions in a stream by writer; the linear position under :func:`writer_label`."""
        streams = {} if self.status is None else self.status["streams"]
        if stream not in streams:
            return {}
        status = streams[stream]
        positions = {
            writer: entry["position"] if isinstance(entry, dict) else entry
            for writer, entry in status["writers"].items()
        }
        if "position" in status:  # a master has both
            positions[writer_label(LINEAR)] = status["position"]
        return positions


class WorkerProgress(NamedTuple):
    """The progress of a worker.

    :ivar applied: number of rows applied
    :ivar lag: number of rows appended and not yet applied
    :ivar state: shown instead of the lag, such as ``"killed"``; None while the worker runs
    """

    applied: int
    lag: int
    state: str | None

    def __str__(self) -> str:
        return self.state or (f"lag {self.lag:,} rows" if self.lag else "no lag")


class ProgressDisplay:
    """Shows events, and progress: as bars on a terminal, as a line every few seconds elsewhere.

    :param console: where to show them; None for stderr
    :param line_interval_s: seconds between two lines
    """

    def __init__(
        self, console: Console | None = None, line_interval_s: float = LINE_INTERVAL_S
    ) -> None:
        self._line_interval_s = line_interval_s
        self._console = Console(stderr=True) if console is None else console
        self._progress = Progress(
            TextColumn("{task.description:>8}"),
            BarColumn(bar_width=32),
            TextColumn("{task.completed:>7,.0f}"),
            TextColumn("{task.fields[note]:<20}", style="dim"),
            console=self._console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not self._console.is_terminal,
        )
        self._bars: dict[str, TaskID] = {}
        self._line_shown_at = time.monotonic()
        self._progress.start()

    def close(self) -> None:
        """Remove the bars; events can still be logged."""
        self._progress.stop()

    def log(self, event: str) -> None:
        """Show an event, permanently."""
        self._console.print(escape(event), highlight=False, soft_wrap=True)

    def update(self, appended: int, total: int, workers: Mapping[str, WorkerProgress]) -> None:
        """Show the current progress.

        :param appended: number of rows appended, of ``total``
        """
        if self._console.is_terminal:
            self._move_bar("appended", appended, total, "")
            for name, worker in workers.items():
                self._move_bar(name, worker.applied, total, str(worker))
        elif time.monotonic() - self._line_shown_at >= self._line_interval_s:
            self._line_shown_at = time.monotonic()
            applied = "; ".join(
                f"{name} applied {each.applied:,} ({each})" for name, each in workers.items()
            )
            self.log(f"  {appended:,} of {total:,} rows appended; {applied}")

    def _move_bar(self, name: str, completed: int, total: int, note: str) -> None:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=total, note="")
        self._progress.update(self._bars[name], completed=completed, total=total, note=note)

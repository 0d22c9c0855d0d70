"""Progress of a landing: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from synrepl.pipeline.lake.land.landing import LandingRound


class LandingProgress:
    """Shows rows landed, their rate, and what is left, on stderr.

    :param settle_timeout_s: how long a run waits until streams are settled, in seconds
    """

    def __init__(self, settle_timeout_s: float) -> None:
        self._timeout_s = settle_timeout_s
        console = Console(stderr=True, highlight=False)
        self._rows = 0
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn(
                "{task.completed:,} rows landed, {task.fields[rate]} rows/s, {task.fields[left]}"
            ),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("landing", total=None, rate="-", left="starting Spark")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def landed(self, landed: LandingRound) -> None:
        """Show the result of a round."""
        rows = landed.rows.total()
        self._rows += rows
        speed = self._progress.tasks[self._task].speed
        self._progress.update(
            self._task,
            completed=self._rows,
            rate="-" if speed is None else f"{speed:,.0f}",
            left=self._left(landed),
        )

    def _left(self, landed: LandingRound) -> str:
        if tokens := sum(landed.behind.values()):
            return f"{tokens:,} tokens left"
        if streams := len(landed.unsettled):
            return f"waiting until {streams:,} streams are settled, {self._timeout_s:g} s at most"
        return "up to date"

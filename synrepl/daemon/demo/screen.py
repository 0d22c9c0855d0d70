"""What is shown while the demo runs: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

#: Seconds between two lines where there is no terminal.
_LINE_EVERY_S = 5.0


class WorkerFigures(NamedTuple):
    """How far a worker is.

    :ivar applied: rows
    :ivar lag_rows: rows that were appended and are not applied
    :ivar lag_s: since the first of these was appended, in seconds
    :ivar state: what is to be said in place of its lag
    """

    applied: int
    lag_rows: int
    lag_s: float
    state: str | None

    @property
    def note(self) -> str:
        """How it is, in a few words."""
        if self.state is not None:
            return self.state
        return f"lag {self.lag_rows:,} rows, {self.lag_s:.1f} s" if self.lag_rows else "no lag"


class Figures(NamedTuple):
    """How far everything is.

    :ivar appended: rows, of ``wanted``
    :ivar rate: rows appended per second, lately
    """

    appended: int
    wanted: int
    rate: float
    workers: Mapping[str, WorkerFigures]


class Screen(Protocol):
    """Where it is shown."""

    def happened(self, text: str) -> None:
        """Something that is to stay on the screen."""

    def show(self, figures: Figures) -> None:
        """Figures that replace the ones before."""

    def close(self) -> None:
        """It is no longer needed."""


class Lines:
    """Plain lines on stderr."""

    def __init__(self) -> None:
        self._shown = time.monotonic()

    def close(self) -> None:
        """Nothing to do."""

    def happened(self, text: str) -> None:
        """A line."""
        click.echo(text, err=True)

    def show(self, figures: Figures) -> None:
        """A line, unless there was one lately."""
        if time.monotonic() - self._shown < _LINE_EVERY_S:
            return
        self._shown = time.monotonic()
        workers = "; ".join(
            f"{name} applied {worker.applied:,} ({worker.note})"
            for name, worker in figures.workers.items()
        )
        self.happened(
            f"  {figures.appended:,} of {figures.wanted:,} rows appended,"
            f" {figures.rate:,.0f} rows/s; {workers}"
        )


class Bars:
    """Bars on a terminal."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:>8}"),
            BarColumn(bar_width=32),
            TextColumn("{task.completed:>7,.0f}"),
            TextColumn("{task.fields[note]:<26}", style="dim"),
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._bars: dict[str, TaskID] = {}
        self._progress.start()

    def close(self) -> None:
        """Take the bars away."""
        self._progress.stop()

    def happened(self, text: str) -> None:
        """A line above the bars."""
        self._progress.console.print(escape(text), highlight=False)

    def show(self, figures: Figures) -> None:
        """Move the bars."""
        rate = f"{figures.rate:,.0f} rows/s" if figures.rate else ""
        self._move("appended", figures.appended, figures.wanted, rate)
        for name, worker in figures.workers.items():
            self._move(name, worker.applied, figures.wanted, worker.note)

    def _move(self, name: str, completed: int, total: int, note: str) -> None:
        bar = self._bars.get(name)
        if bar is None:
            bar = self._bars[name] = self._progress.add_task(name, total=total, note="")
        self._progress.update(bar, completed=completed, total=total, note=note)


def open_screen() -> Screen:
    """The screen that suits stderr."""
    console = Console(stderr=True)
    return Bars(console) if console.is_terminal else Lines()

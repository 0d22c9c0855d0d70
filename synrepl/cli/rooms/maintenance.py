"""What the commands for stored rooms share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from synrepl.cli.configured_database import owned_database
from synrepl.cli.running import run
from synrepl.cli.terminal import printable
from synrepl.daemon.config.config import Config, load
from synrepl.services.rooms.maintenance.room_job import MaintenanceProgress
from synrepl.storage.database import Database

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def without_index_check_option(command: F) -> F:
    """``--without-index-check``, as ``index_check: bool``."""
    return click.option(
        "--without-index-check",
        "index_check",
        is_flag=True,
        flag_value=False,
        default=True,
        help="Do not check indexes with amcheck before rows are removed.",
    )(command)


class ShownProgress:
    """Shows how far an operation is: a bar on a terminal's stderr, nothing elsewhere."""

    def __init__(self) -> None:
        console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=20),
            TextColumn("{task.description}: {task.completed:,}{task.fields[total_text]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("planning", total=None, total_text="")

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

    def end(self) -> None:
        """Remove it, before lines are printed."""
        self._progress.stop()

    def show(self, at: MaintenanceProgress) -> None:
        """Show how far it is."""
        text = "" if at.total is None else f" of {at.total:,}"
        where = f"{printable(at.room_id)}, {at.phase}" if at.room_id else at.phase
        self._progress.update(
            self._task,
            description=where,
            completed=at.done,
            total=None if at.total is None else max(at.total, 1),
            total_text=text,
        )


def with_database(
    config: tuple[Path, ...],
    work: Callable[[Database, Config, ShownProgress], Awaitable[T]],
) -> T:
    """Run something on the configured database, and show how far it is."""
    loaded = load(config)

    async def main(reactor: Any) -> T:
        async with owned_database(reactor, loaded) as database:
            with ShownProgress() as progress:
                return await work(database, loaded, progress)

    return run(main)


def size(count: int) -> str:
    """Bytes, for people."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1_000:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1_000
    return f"{value:,.1f} TB"

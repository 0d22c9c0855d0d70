"""The demo's last act: its streams are landed in a lake, checked there, and asked something."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import rich.console
from rich.text import Text
from twisted.internet.utils import getProcessOutputAndValue

from synrepl.core.errors import Unavailable
from synrepl.daemon.cli.given import ENVIRONMENT
from synrepl.daemon.cli.terminal import plain_table

#: Runs in a process of its own: Spark wants a main thread, and its tasks fork.
_CHILD = "synrepl.daemon.demo.lake_child"


class LakeActFailed(Unavailable):
    """the lake of the demo failed ({status}): {reason}"""


class Answer(msgspec.Struct, frozen=True):
    """What a job tells."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


class LakeOutcome(msgspec.Struct, frozen=True):
    """What became of the lake.

    :ivar landed: rows, by stream
    :ivar problems: where the lake differs from the database
    """

    landed: Mapping[str, int]
    problems: tuple[str, ...]
    job: Answer

    def to_json(self) -> dict[str, Any]:
        """All of it as data."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built


async def play_lake(reactor: Any, folder: Path, dsn: str) -> LakeOutcome:
    """Land, check and ask; the database has to be up.

    :raises LakeActFailed: it could not be done
    """
    output, errors, status = await getProcessOutputAndValue(
        sys.executable,
        ["-m", _CHILD, str(folder)],
        env={**os.environ, ENVIRONMENT: dsn},
        reactor=reactor,
    )
    if status != 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise LakeActFailed(status=status, reason=lines[-1] if lines else "it said nothing")
    return msgspec.json.decode(output, type=LakeOutcome)


def lake_report(outcome: LakeOutcome) -> Iterator[rich.console.RenderableType]:
    """The parts, for a console."""
    rows = sum(outcome.landed.values())
    yield Text()
    yield Text(
        f"{rows:,} rows of {len(outcome.landed)} streams are in a lake. {outcome.job.title}:"
    )
    yield Text()
    first = outcome.job.rows[0] if outcome.job.rows else ()
    table = plain_table(
        *(
            name.replace("_", " ") + (">" if isinstance(cell, int) else "")
            for name, cell in zip(outcome.job.columns, first, strict=False)
        )
    )
    for row in outcome.job.rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell or "-") for cell in row))
    yield table
    yield Text()
    if outcome.problems:
        yield from (Text(problem, "red") for problem in outcome.problems)
        yield Text("The lake differs from the database.", "red bold")
    else:
        yield Text("The lake has exactly what the database has.", "green bold")

"""The lake of the demo: all streams are landed with Spark and checked, and a job reads them.

Spark needs a main thread, and its tasks fork, so it runs in a process of its own: this module as a
program, with the folder as its argument and the DSN in the variable ``SYNREPL_DATABASE``. It
prints a :class:`LakeResult` as JSON.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import rich.console
from rich.text import Text
from twisted.internet.utils import getProcessOutputAndValue

from synrepl.cli.conventions import print_json
from synrepl.cli.dsn import ENVIRONMENT
from synrepl.cli.terminal import plain_table
from synrepl.core.errors import SynreplError, Unavailable

#: The job whose result is shown.
JOB = "activity"

#: Lines of the job's result that are shown by default: those with the most rows.
_DEFAULT_LINES = 5


class DemoLakeFailed(Unavailable):
    """the lake of the demo failed ({status}): {reason}"""


class JobResult(msgspec.Struct, frozen=True):
    """The result of a Spark job, as a table."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


class LakeResult(msgspec.Struct, frozen=True):
    """The results of landing and checking.

    :ivar landed: number of rows in the lake, by stream
    :ivar problems: differences between the lake and the database, one sentence each
    :ivar job: the result of the job
    """

    landed: Mapping[str, int]
    problems: tuple[str, ...]
    job: JobResult

    def to_json(self) -> dict[str, Any]:
        """The result as data."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data


async def run_lake(reactor: Any, folder: Path, dsn: str) -> LakeResult:
    """Land all streams, check the lake and run the job; the database must be running.

    :param folder: where to create the lake
    :raises DemoLakeFailed: the Spark process failed
    """
    output, errors, status = await getProcessOutputAndValue(
        sys.executable,
        ["-m", __name__, str(folder)],
        env={**os.environ, ENVIRONMENT: dsn},
        reactor=reactor,
    )
    if status != 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise DemoLakeFailed(status=status, reason=lines[-1] if lines else "no output")
    return msgspec.json.decode(output, type=LakeResult)


def lake_report(result: LakeResult, show_all: bool) -> Iterator[rich.console.RenderableType]:
    """The result for a console.

    :param show_all: whether to show all lines of the job's result
    """
    job = result.job
    rows = sum(result.landed.values())
    yield Text()
    yield Text(f"{rows:,} rows of {len(result.landed)} streams are in a lake (Delta tables).")
    yield Text(f"{job.title} (Spark job {JOB!r}):")
    yield Text()
    first = job.rows[0] if job.rows else ()
    table = plain_table(
        *(
            name.replace("_", " ") + (">" if isinstance(cell, int) else "")
            for name, cell in zip(job.columns, first, strict=False)
        )
    )
    lines = list(job.rows)
    if not show_all:
        by_rows = sorted(lines, key=lambda line: -line[job.columns.index("rows")])
        lines = [line for line in lines if line in by_rows[:_DEFAULT_LINES]]
    for line in lines:
        table.add_row(
            *(f"{cell:,}" if isinstance(cell, int) else str(cell or "-") for cell in line)
        )
    yield table
    if len(lines) < len(job.rows):
        yield Text(f"(and {len(job.rows) - len(lines)} more lines with --all)", "dim")
    if any(line[0] is None for line in lines):
        yield Text(f"-: rows of this stream have no {job.columns[0]}.", "dim")
    yield from (Text(problem, "red") for problem in result.problems)


def land_and_check(folder: Path, dsn: str) -> None:
    """Land all streams, check them, run the job, and print the result."""
    from synrepl.pipeline.jobs.catalogue import find_job
    from synrepl.pipeline.jobs.run import run_job
    from synrepl.pipeline.lake.check.check import check
    from synrepl.pipeline.lake.erase.mask import mask
    from synrepl.pipeline.lake.erase.pending import pending
    from synrepl.pipeline.lake.lake import Lake
    from synrepl.pipeline.lake.maintenance import LakeMaintenance
    from synrepl.pipeline.session.options import SessionOptions
    from synrepl.pipeline.session.session import named_session
    from synrepl.pipeline.source.database.open import open_source_database

    job = find_job(JOB)
    database = open_source_database(dsn, "demo lake")
    with named_session(SessionOptions(app_name="synrepl demo")) as spark:
        lake = Lake.open_or_create(folder, database.server, database.is_lossy)
        with lake.write_lock():
            landed = LakeMaintenance(spark, lake, database, dsn).run(database.streams)
            known = pending(spark, database, lake).known
            report = check(spark, lake, database, dsn, mask=partial(mask, erasures=known))
        with lake.read_lock():
            rows = [[_to_json(cell) for cell in row] for row in run_job(spark, lake, job).collect()]
    columns = [field.name for field in job.schema]
    print_json(
        {
            "landed": landed.rows,
            "problems": report.problems,
            "job": {"title": job.title, "columns": columns, "rows": rows},
        }
    )


def _to_json(cell: object) -> object:
    return cell if cell is None or isinstance(cell, int | str) else str(cell)


if __name__ == "__main__":
    try:
        land_and_check(Path(sys.argv[1]), os.environ[ENVIRONMENT])
    except SynreplError as error:
        click.echo(str(error), err=True)
        sys.exit(1)

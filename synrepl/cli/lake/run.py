"""``synrepl lake run``: runs jobs over a lake."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from synrepl.cli.conventions import json_option, print_json
from synrepl.cli.lake.job_rows import plain_cell, show_rows
from synrepl.cli.lake.options import lake_path, session_options
from synrepl.cli.lake.run_rooms import (
    RoomJobOptions,
    find_room_job,
    room_job_options,
    run_room_job,
)
from synrepl.cli.terminal import graceful_exit, plain_table, printable, show
from synrepl.pipeline.jobs.catalogue import JOBS, find_job
from synrepl.pipeline.jobs.charts import write_chart
from synrepl.pipeline.jobs.job import LakeJob
from synrepl.pipeline.jobs.longform import streams_for
from synrepl.pipeline.jobs.run import explain_job, run_job
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.storage import LakePath
from synrepl.pipeline.rooms.catalogue import ROOM_JOBS
from synrepl.pipeline.rooms.spark_room_job import SparkRoomJob
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import named_session

#: The default of --rows.
SHOWN = 50


@click.command("run")
@click.argument("job", required=False)
@click.argument("path", metavar="[LAKE]", required=False, callback=lake_path)
@click.option("--explain", "only_explain", is_flag=True, help="Show Spark's query plan instead.")
@click.option(
    "--plot", "picture", type=click.Path(path_type=Path), help="Draw the result as a PNG file."
)
@click.option(
    "--rows",
    "shown",
    type=click.IntRange(min=1),
    default=SHOWN,
    show_default=True,
    help="Maximum number of rows to show. --json and --plot use all.",
)
@room_job_options
@session_options
@json_option
def command(
    job: str | None,
    path: LakePath | None,
    only_explain: bool,
    picture: Path | None,
    shown: int,
    of_rooms: RoomJobOptions,
    session: SessionOptions,
    as_json: bool,
) -> None:
    """Run JOB over the folder LAKE, or over the rooms of a database, and show the result. Without JOB, list the jobs."""
    if job is None:
        _show_jobs(as_json)
        return
    if (room_job := find_room_job(job)) is not None:
        if path is not None or picture is not None or only_explain:
            raise click.UsageError(
                f"Job {job!r} reads a database: give --database, and neither LAKE, --plot nor --explain."
            )
        run_room_job(room_job, of_rooms, session, shown, as_json=as_json)
        return
    wanted = find_job(job, [each.name for each in ROOM_JOBS])
    if of_rooms.is_given:
        raise click.UsageError(
            f"Job {job!r} reads a lake: give no database, and neither --room, --set, --parquet nor --html."
        )
    if path is None:
        raise click.UsageError("Missing argument 'LAKE'.")
    lake = Lake(path)
    streams_for(lake, wanted.input)
    with graceful_exit(), lake.read_lock(), named_session(session) as spark:
        if only_explain:
            click.echo(explain_job(spark, lake, wanted))
            return
        rows = _answer(spark, lake, wanted)
    if as_json:
        print_json([{name: plain_cell(cell) for name, cell in row.items()} for row in rows])
    else:
        _show(wanted, rows, shown)
    # Last, so that the rows are printed even if drawing fails.
    if picture is not None:
        nothing = write_chart(wanted, rows, picture)
        if not as_json:
            drawn = f"nothing to draw, as {nothing}; so says the picture" if nothing else "drawn"
            show(f"{drawn} in {printable(str(picture))}")


def _answer(spark: Any, lake: Lake, job: LakeJob) -> list[dict[str, Any]]:
    return [row.asDict() for row in run_job(spark, lake, job).collect()]


def _show_jobs(as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {"job": job.name, "title": job.title, "reads": reads}
                for reads, jobs in _ALL_JOBS
                for job in jobs
            ]
        )
        return
    table = plain_table("job", "reads", "result")
    for reads, jobs in _ALL_JOBS:
        for job in jobs:
            table.add_row(job.name, reads, job.title)
    show(table)


#: By what they read.
_ALL_JOBS: tuple[tuple[str, Sequence[LakeJob | SparkRoomJob]], ...] = (
    ("a lake", JOBS),
    ("a database", ROOM_JOBS),
)


def _show(job: LakeJob, rows: list[dict[str, Any]], most: int) -> None:
    show_rows(job.title, job.schema, rows[:most], max(0, len(rows) - most))

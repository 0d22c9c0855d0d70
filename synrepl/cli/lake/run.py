"""``synrepl lake run``: runs jobs over a lake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from synrepl.cli.conventions import json_option, print_json
from synrepl.cli.lake.options import lake_path, session_options
from synrepl.cli.terminal import graceful_exit, plain_table, printable, show
from synrepl.pipeline.jobs.catalogue import JOBS, find_job
from synrepl.pipeline.jobs.charts import write_chart
from synrepl.pipeline.jobs.job import LakeJob
from synrepl.pipeline.jobs.longform import streams_for
from synrepl.pipeline.jobs.run import explain_job, run_job
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.storage import LakePath
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
@session_options
@json_option
def command(
    job: str | None,
    path: LakePath | None,
    only_explain: bool,
    picture: Path | None,
    shown: int,
    session: SessionOptions,
    as_json: bool,
) -> None:
    """Run JOB over the folder LAKE and show the result. Without JOB, list the jobs."""
    if job is None:
        _show_jobs(as_json)
        return
    if path is None:
        raise click.UsageError("Missing argument 'LAKE'.")
    wanted, lake = find_job(job), Lake(path)
    streams_for(lake, wanted.input)
    with graceful_exit(), lake.read_lock(), named_session(session) as spark:
        if only_explain:
            click.echo(explain_job(spark, lake, wanted))
            return
        rows = _answer(spark, lake, wanted)
    if as_json:
        print_json([{name: _plain(cell) for name, cell in row.items()} for row in rows])
    else:
        _show(wanted, rows, shown)
    # Last, so that the rows are printed even if drawing fails.
    if picture is not None:
        write_chart(wanted, rows, picture)
        if not as_json:
            show(f"drawn in {printable(str(picture))}")


def _answer(spark: Any, lake: Lake, job: LakeJob) -> list[dict[str, Any]]:
    return [row.asDict() for row in run_job(spark, lake, job).collect()]


def _show_jobs(as_json: bool) -> None:
    if as_json:
        print_json([{"job": job.name, "title": job.title} for job in JOBS])
        return
    table = plain_table("job", "result")
    for job in JOBS:
        table.add_row(job.name, job.title)
    show(table)


def _show(job: LakeJob, rows: list[dict[str, Any]], most: int) -> None:
    if not rows:
        show(job.title, "", "No rows: what it reads is empty so far.")
        return
    names = [field.name for field in job.schema]
    numbers = {
        field.name for field in job.schema if field.dataType.typeName() in ("long", "double")
    }
    table = plain_table(
        *(name.replace("_", " ") + (">" if name in numbers else "") for name in names)
    )
    for row in rows[:most]:
        table.add_row(*(_cell(row[name]) for name in names))
    show(job.title, "", table)
    if (more := len(rows) - most) > 0:
        show(f"and {more:,} more row{'' if more == 1 else 's'} (--rows, --json)")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return printable(str(value))


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)

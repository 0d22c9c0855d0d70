"""``synrepl lake compact``: joins many small files into few large ones."""

from __future__ import annotations

import click

from synrepl.cli.conventions import json_option, print_json
from synrepl.cli.lake.options import (
    lake_argument,
    retention_option,
    selected_streams,
    session_options,
    stream_option,
)
from synrepl.cli.terminal import graceful_exit, plain_table, show
from synrepl.pipeline.lake.compact.compact import compact
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.storage import LakePath
from synrepl.pipeline.lake.table import DEFAULT_RETENTION_HOURS, StreamTable
from synrepl.pipeline.lake.watermarks import Watermarks
from synrepl.pipeline.session.on_demand import session_on_demand
from synrepl.pipeline.session.options import SessionOptions


@click.command("compact")
@lake_argument
@stream_option
@retention_option
@session_options
@json_option
def command(
    path: LakePath,
    streams: tuple[str, ...],
    retention_hours: int | None,
    session: SessionOptions,
    as_json: bool,
) -> None:
    """Join all small files of the folder LAKE, and remove files that were replaced before the retention.

    'synrepl lake land' does this by itself where it is worthwhile. With --retention-hours 0
    files are removed at once: whoever reads the lake then without synrepl fails.
    """
    lake = Lake(path)
    wanted = selected_streams(streams, lake.streams)
    for stream in wanted:
        lake.table(stream)
    with graceful_exit(), lake.write_lock(), session_on_demand(session) as spark:
        done = [compact(spark, lake, stream, full=True) for stream in wanted]
        with lake.removal_lock():
            removed = {
                stream: _remove_unused(lake, lake.table(stream), retention_hours)
                for stream in wanted
            }
            hours = DEFAULT_RETENTION_HOURS if retention_hours is None else retention_hours
            Watermarks(lake).remove_unused(lake.removal_age(hours))
    if as_json:
        print_json(
            {
                result.stream: {
                    "joined": result.joined,
                    "made": result.made,
                    "removed": removed[result.stream],
                }
                for result in done
            }
        )
        return
    table = plain_table("stream", "files joined>", "into>", "removed>")
    for result in done:
        table.add_row(
            result.stream, f"{result.joined:,}", f"{result.made:,}", f"{removed[result.stream]:,}"
        )
    show(table)


def _remove_unused(lake: Lake, table: StreamTable, retention_hours: int | None) -> int:
    if retention_hours is not None:
        table.set_retention(retention_hours)
    return table.remove_unused(lake.removal_age(table.retention_hours))

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
from synrepl.pipeline.lake.maintenance import remove_unused_files
from synrepl.pipeline.lake.storage import LakePath
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
        tables = {stream: lake.table(stream) for stream in wanted}
        if retention_hours is not None:
            for table in tables.values():
                table.set_retention(retention_hours)
        with lake.removal_lock():
            removed = remove_unused_files(lake, tables)
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
    shown = plain_table("stream", "files joined>", "into>", "removed>")
    for result in done:
        shown.add_row(
            result.stream, f"{result.joined:,}", f"{result.made:,}", f"{removed[result.stream]:,}"
        )
    show(shown)

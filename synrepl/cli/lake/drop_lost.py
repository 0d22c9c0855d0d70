"""``synrepl lake drop-lost``: drops rows that the database lost in a failover from the lake."""

from __future__ import annotations

from dataclasses import asdict

import click

from synrepl.cli.conventions import json_option, print_json
from synrepl.cli.lake.options import (
    database_options,
    lake_argument,
    selected_streams,
    session_options,
    source_database,
    stream_option,
)
from synrepl.cli.terminal import graceful_exit, show
from synrepl.pipeline.lake.failover.drop_lost import drop_lost
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.storage import LakePath
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import named_session


@click.command("drop-lost")
@lake_argument
@database_options
@stream_option
@session_options
@json_option
def command(
    path: LakePath,
    dsn: str,
    patience_s: float,
    streams: tuple[str, ...],
    session: SessionOptions,
    as_json: bool,
) -> None:
    """Drop rows from the folder LAKE that the database lost in a failover.

    'synrepl lake check' lists them. No other rows are dropped.
    """
    lake = Lake(path)
    wanted = selected_streams(streams, lake.streams)
    for stream in wanted:
        lake.table(stream)
    with graceful_exit(), source_database(dsn, "lake drop-lost", patience_s) as source:
        lake.require_server(source.server)
        with lake.write_lock(), named_session(session) as spark:
            dropped = drop_lost(spark, lake, source, dsn, wanted)
    if as_json:
        print_json({stream: [asdict(each) for each in rows] for stream, rows in dropped.items()})
        return
    for stream, rows in sorted(dropped.items()):
        show(*(f"stream {stream!r}: dropped {each}" for each in rows))
    if not dropped:
        show("The lake has no rows that the database lost in a failover.")

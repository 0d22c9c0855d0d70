"""``synrepl lake replay``: writes the lake's facts into another database."""

from __future__ import annotations

import click
from rich.console import Console
from rich.progress import Progress

from synrepl.cli.conventions import json_option, print_json
from synrepl.cli.lake.options import (
    database_options,
    lake_argument,
    session_options,
    stream_option,
)
from synrepl.cli.terminal import counted, graceful_exit, plain_table, show
from synrepl.core.tokens import Token
from synrepl.driver.connection import DatabaseAddress
from synrepl.pipeline.lake.check.check import Extent
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.replay.copy_database import INSTANCE, NotACopy
from synrepl.pipeline.lake.replay.replay import replay, replay_ranges
from synrepl.pipeline.lake.storage import LakePath
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import named_session
from synrepl.pipeline.source.database.open import NoStreamTables, open_source_database


@click.command("replay")
@lake_argument
@database_options
@stream_option
@click.option(
    "--after", type=click.IntRange(min=0), default=0, help="Replay only facts above this token."
)
@click.option("--upto", type=click.IntRange(min=0), help="Replay only facts up to this token.")
@session_options
@json_option
def command(
    path: LakePath,
    dsn: str,
    patience_s: float,
    streams: tuple[str, ...],
    after: Token,
    upto: Token | None,
    session: SessionOptions,
    as_json: bool,
) -> None:
    """Write the facts of the folder LAKE into another database, with their IDs and writers.

    Missing schema and tables are created in the database. Its streams must be empty
    from the token where the replay starts. A replay that was killed continues when it
    is run again.
    """
    console = Console(stderr=True, highlight=False)
    lake = Lake(path)
    extent = Extent(streams=list(dict.fromkeys(streams)) or None, after=after, upto=upto)
    replay_ranges(lake, extent)
    _check_writable(dsn, patience_s)
    with (
        graceful_exit(),
        named_session(session) as spark,
        Progress(console=console, transient=True, disable=not console.is_terminal) as bars,
    ):
        tasks = {}

        def on_progress(stream: str, rows: int, of: int) -> None:
            if stream not in tasks:
                tasks[stream] = bars.add_task(stream)
            bars.update(tasks[stream], completed=rows, total=of)

        done = replay(spark, lake, dsn, extent, progress=on_progress)
    if as_json:
        print_json(
            {
                result.stream: {
                    "after": result.after,
                    "upto": result.upto,
                    "rows": result.rows,
                    "rows_there": result.present,
                    "cells_filled": result.filled,
                    "rows_left": result.remaining,
                }
                for result in done
            }
        )
        return
    table = plain_table("stream", "rows written>", "there already>", "up to token>", "")
    shown = [result for result in done if result.rows or result.present or result.remaining]
    for result in shown:
        notes = [f"{result.filled:,} erased cells are empty, not NULL"] if result.filled else []
        if result.remaining:
            notes.append(
                f"{result.remaining:,} rows above are left: not all writers have landed so far"
            )
        rows = (f"{result.rows:,}", f"{result.present:,}", f"{result.upto:,}")
        table.add_row(result.stream, *rows, "; ".join(notes))
    if shown:
        show(table)
    if without := len(done) - len(shown):
        noun = "other stream" if shown else "stream"
        show(f"No rows to replay in {counted(without, noun)}.")


def _check_writable(dsn: str, patience_s: float) -> None:
    """Check that the database is reachable, and not a foreign one."""
    try:
        source = open_source_database(dsn, INSTANCE, patience_s)
    except NoStreamTables:
        return  # they will be created
    source.close()
    if source.is_lossy:
        raise NotACopy(where=DatabaseAddress(dsn, INSTANCE).where)

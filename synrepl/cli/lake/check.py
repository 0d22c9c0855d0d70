"""``synrepl lake check``: compares a lake with its database."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import click
from rich.console import RenderableType

from synrepl.cli.conventions import json_option, print_json
from synrepl.cli.lake.options import (
    database_options,
    lake_argument,
    selected_streams,
    session_options,
    source_database,
    stream_option,
)
from synrepl.cli.terminal import counted, graceful_exit, plain_table, printable, show
from synrepl.core.errors import StorageError
from synrepl.daemon.exit_codes import EXIT_FAILED
from synrepl.pipeline.lake.check.check import RANGE_ROWS, Extent, check, first_damage
from synrepl.pipeline.lake.check.report import CheckReport, Outcome, StreamReport
from synrepl.pipeline.lake.erase.erasures import Erasures
from synrepl.pipeline.lake.erase.mask import mask
from synrepl.pipeline.lake.erase.pending import pending
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.storage import LakePath
from synrepl.pipeline.lake.watermarks import Watermarks, WatermarksDamaged
from synrepl.pipeline.session.on_demand import session_on_demand
from synrepl.pipeline.session.options import SessionOptions

_WORDS = {
    Outcome.EQUAL: "equal",
    Outcome.LOST: "LOST IN A FAILOVER",
    Outcome.DIFFERENT: "DIFFERS",
    Outcome.NOT_COMPARED: "NOT COMPARED",
}


class DamagedLakeFile(StorageError):
    """stream {stream!r} cannot be compared: {why}"""


@click.command("check")
@lake_argument
@database_options
@stream_option
@click.option(
    "--copy",
    "is_copy",
    is_flag=True,
    help="The database is a copy made by 'synrepl lake replay', not the lake's own.",
)
@click.option(
    "--range-rows",
    type=click.IntRange(min=100),
    default=RANGE_ROWS,
    show_default=True,
    help="Approximate number of rows per range that is compared by count and checksum.",
)
@click.option(
    "--accept-lost",
    is_flag=True,
    help="Exit with 0 even if the lake has rows that the database lost in a failover.",
)
@session_options
@json_option
def command(
    path: LakePath,
    dsn: str,
    patience_s: float,
    streams: tuple[str, ...],
    is_copy: bool,
    range_rows: int,
    accept_lost: bool,
    session: SessionOptions,
    as_json: bool,
) -> None:
    """Prove that the folder LAKE equals the database, up to where it was landed.

    Streams of up to 200,000 rows are compared row by row. Of others, and if one of
    these differs, Spark is started, and compares counts and checksums of both sides
    range by range; rows of ranges that differ are then compared one by one, and
    listed. What the next 'lake land' will erase differs until then, and is counted.
    Rows that the database lost in a failover are listed as such.
    The exit code is 1 if anything differs, was lost or was not compared.
    """
    lake = Lake(path)
    for stream in streams:
        lake.table(stream)
    with graceful_exit(), source_database(dsn, "lake check", patience_s) as source:
        if not is_copy:
            lake.require_server(source.server)
        # The lock keeps others from landing or erasing, so both sides are masked alike.
        with lake.write_lock(), session_on_demand(session) as spark:
            try:
                erasures = pending(spark, source, lake)
            except StorageError:
                # It reads the lake's rows, before the check has looked at the files.
                check_files(lake)
                raise
            report = check(
                spark,
                lake,
                source,
                dsn,
                Extent(streams=selected_streams(streams, lake.streams), range_rows=range_rows),
                mask=partial(mask, erasures=erasures.known),
                copy=is_copy,
            )
            if as_json:
                print_json(report.to_json())
            else:
                _show(report, is_copy, erasures.new)
            # After the report, which is about streams.
            for each in Watermarks(lake).find_damaged():
                raise WatermarksDamaged(
                    path=Watermarks(lake).path / each.file.name, reason=each.found
                )
    if not (report.equal or (accept_lost and report.outcome is Outcome.LOST)):
        sys.exit(EXIT_FAILED)


def check_files(lake: Lake) -> None:
    """Check that all files of a lake are as they were written.

    :raises DamagedLakeFile: the first one that is not
    """
    for table in map(lake.table, lake.streams):
        if why := first_damage(table, table.files):
            raise DamagedLakeFile(stream=table.stream, why=why)


def _show(report: CheckReport, is_copy: bool, new: Erasures) -> None:
    listed = [
        result
        for result in report.streams
        if result.lake_rows or result.source_rows or _is_notable(result)
    ]
    shown = plain_table("stream", "rows in the database>", "in the lake>", "ranges>", "tokens", "")
    for result in listed:
        compared = not result.not_compared
        shown.add_row(
            result.stream,
            f"{result.source_rows:,}" if compared else "-",
            f"{result.lake_rows:,}" if compared else "-",
            f"{result.ranges:,}",
            f"{result.after + 1} to {result.upto}" if result.upto > result.after else "none",
            "; ".join(_notes(result)),
        )
    parts: list[RenderableType] = [shown] if listed else []
    if without := len(report.streams) - len(listed):
        streams = f"{'other ' if listed else ''}{'stream has' if without == 1 else 'streams have'}"
        parts.append(f"{without:,} {streams} no rows on either side.")
    if report.streams_not_in_lake and not is_copy:
        parts.append(f"Not in the lake, so not asked for: {', '.join(report.streams_not_in_lake)}.")
    if report.left_out and not is_copy:
        parts += ["Not read from the database, so not compared:"]
        parts += [printable(reason) for reason in report.left_out.values()]
    if report.problems:
        parts += ["", *map(printable, report.problems), ""]
    if new and report.outcome is Outcome.DIFFERENT and not is_copy:
        parts.append(
            f"Still to be erased from the lake: {counted(len(new.subjects), 'user')}, and the"
            f" events of {counted(len(new.redacted | new.applied.events), 'redaction')}."
            " Their rows differ until the next 'synrepl lake land'."
        )
    show(*parts, _verdict(report, is_copy))


def _is_notable(result: StreamReport) -> bool:
    return bool(result.quarantined or result.not_in_lake or result.after) or not result.equal


def _notes(result: StreamReport) -> Iterator[str]:
    all_trimmed = result.equal and result.after >= result.upto > 0
    yield "nothing left to compare" if all_trimmed else _WORDS[result.outcome]
    if result.lost:
        yield f"{sum(rows.rows for rows in result.lost):,} rows were lost by the database"
    if result.gone:
        yield f"{result.gone:,} rows are gone from the database since"
    if result.revised:
        yield f"{result.revised:,} events were judged again or redacted by the database since"
    if result.after and not result.not_compared:
        yield f"not comparable up to {result.after}, which was trimmed"
    if result.not_in_lake:
        yield f"columns that are not in the lake are not compared: {', '.join(result.not_in_lake)}"
    if result.goes_on_to:
        yield f"the database goes on to {result.goes_on_to}, which is not landed"
    if result.quarantined:
        yield f"{result.quarantined:,} rows in quarantine are not compared"


def _verdict(report: CheckReport, is_copy: bool) -> str:
    if report.equal:
        return "All equal."
    differs = f"The {'copy' if is_copy else 'database'} and the lake differ."
    words = [differs] if report.outcome is Outcome.DIFFERENT else []
    if report.outcome is Outcome.LOST:
        words = [
            "The lake has all that the database has up to its position,"
            " and rows that the database lost in a failover."
        ]
    if left := [result.stream for result in report.streams if result.not_compared]:
        words.append(f"Not compared: {', '.join(left)}.")
    return " ".join(words or ["Nothing was compared."])

"""``synrepl lake repair``: makes lost and damaged files again, from the database."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields

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
from synrepl.cli.terminal import counted, graceful_exit, show
from synrepl.core.tokens import Token
from synrepl.daemon.exit_codes import EXIT_FAILED
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.log_repair import RepairedLog, repair_logs
from synrepl.pipeline.lake.repair import DamagedFile, RepairedFile, find_damaged, repair
from synrepl.pipeline.lake.storage import LakePath
from synrepl.pipeline.lake.watermarks import DamagedMarks, Watermarks
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import named_session

#: The columns of watermarks, in words.
_MARKS_WORDS = {"stream": "of streams", "token": "tokens", "at": "times"}


@click.command("repair")
@lake_argument
@database_options
@stream_option
@click.option(
    "--accept-missing",
    is_flag=True,
    help="Make a file of what the database still has, even if that is not all.",
)
@session_options
@json_option
def command(
    path: LakePath,
    dsn: str,
    patience_s: float,
    streams: tuple[str, ...],
    accept_missing: bool,
    session: SessionOptions,
    as_json: bool,
) -> None:
    """Make lost and damaged files of LAKE again, from its database.

    All files are read. Those that are missing or cannot be read are named, with what
    they held, and are replaced by new ones with the same rows. The exit code is 1 if
    files of a quarantine are damaged: these are named only. A table whose log is
    damaged first goes back to its newest version that can be read; 'lake land' then
    lands what came after it again. Damaged files of the watermarks are left out, and
    the marks in them are lost, except for those that the database has.
    """
    lake = Lake(path)
    wanted = selected_streams(streams, lake.streams)
    done: list[RepairedFile] = []
    imported = 0
    with graceful_exit(), source_database(dsn, "lake repair", patience_s) as source:
        lake.require_server(source.server)

        def trimmed(stream: str) -> Token:
            return source.observe([stream])[stream].trimmed

        with lake.write_lock():
            logs = repair_logs(lake, wanted, trimmed, accept_missing=accept_missing)
            damaged = find_damaged(lake, wanted)
            if any(not each.quarantined for each in damaged):
                with named_session(session) as spark:
                    done = repair(spark, lake, source, dsn, damaged, accept_missing=accept_missing)
            watermarks = Watermarks(lake)
            lost = watermarks.find_damaged()
            watermarks.take_out(lost)
            if lost or any(each.of_watermarks for each in logs):
                imported = watermarks.import_marks(source.watermarks())
    left = [each for each in damaged if each.quarantined]
    if as_json:
        print_json(
            {
                "logs": [_log_data(each) for each in logs],
                "repaired": [asdict(each) for each in done],
                "left": [asdict(each) for each in left],
                "watermarks": {"lost": [_marks_data(each) for each in lost], "imported": imported},
            }
        )
    else:
        lines = *_log_lines(logs), *_lines(done, left), *_marks_lines(lost, imported)
        show(*lines or ["No file is lost or damaged."])
    if left:
        sys.exit(EXIT_FAILED)


def _log_data(log: RepairedLog) -> dict[str, object]:
    plain = {each.name: getattr(log, each.name) for each in fields(log)}
    return {**plain, "position": str(log.position)}


def _log_lines(logs: Sequence[RepairedLog]) -> Iterator[str]:
    for each in logs:
        name = (
            f"quarantine of stream {each.stream!r}"
            if each.quarantined
            else f"stream {each.stream!r}"
        )
        if each.of_watermarks:
            name = "watermarks"
        yield f"{name}: its log is damaged: {'; '.join(each.damage)}"
        if each.version == each.newest:
            yield f"  nothing is lost: version {each.version} can be read from the rest of it"
        elif each.of_watermarks:
            yield (
                f"  back at version {each.version} of {each.newest}: days of rows that were"
                " landed meanwhile may be later ones"
            )
        else:
            yield (
                f"  back at version {each.version} of {each.newest}, position {each.position}:"
                " the next 'synrepl lake land' lands again what came after it"
            )


def _lines(done: Sequence[RepairedFile], left: Sequence[DamagedFile]) -> Iterator[str]:
    for each in done:
        for damaged in each.damaged:
            yield f"stream {damaged.stream!r}: {damaged.file.name}: {damaged.found}"
        for held in each.held:
            yield (
                f"  {held.rows:,} rows of writer {held.writer!r},"
                f" tokens {held.first} to {held.last}: made again"
            )
        if each.missing:
            yield f"  {each.missing:,} rows: the database has them no longer"
    for damaged in left:
        yield (
            f"quarantine of stream {damaged.stream!r}: {damaged.file.name}: {damaged.found};"
            f" it held {damaged.file.rows:,} rows, and is not made again"
        )


def _marks_data(lost: DamagedMarks) -> dict[str, object]:
    file = lost.file
    known = {name: [str(end) for end in ends] for name, ends in file.extremes.items()}
    return {"name": file.name, "found": lost.found, "marks": file.marks, "from_to": known}


def _marks_lines(lost: Sequence[DamagedMarks], imported: int) -> Iterator[str]:
    for each in lost:
        yield f"watermarks: {each.file.name}: {each.found}"
        known = ", ".join(
            f"{words} {ends.low} to {ends.high}"
            for name, words in _MARKS_WORDS.items()
            if (ends := each.file.extremes.get(name)) is not None
        )
        yield (
            f"  lost: {counted(each.file.marks, 'mark')}{known and f' ({known})'}: days of rows that were"
            " landed meanwhile may be later ones"
        )
    if imported:
        yield f"watermarks: added again from the database: {counted(imported, 'mark')}"

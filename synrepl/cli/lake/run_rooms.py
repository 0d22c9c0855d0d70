"""``synrepl lake run`` for jobs that read the rooms of a database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from synrepl.cli.conventions import print_json
from synrepl.cli.dsn import dsn_from_options, dsn_options
from synrepl.cli.lake.job_rows import plain_cell, show_rows, with_json_text
from synrepl.cli.lake.options import NoDatabaseGiven
from synrepl.cli.terminal import graceful_exit, printable, show
from synrepl.core.errors import ConfigError
from synrepl.pipeline.rooms.catalogue import ROOM_JOBS
from synrepl.pipeline.rooms.reading.open import open_room_source
from synrepl.pipeline.rooms.spark_room_job import SparkRoomJob
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import named_session

F = TypeVar("F", bound=Callable[..., Any])


class NoSetting(ConfigError):
    """{setting!r} is no setting of a job: want NAME=VALUE, such as what_if=11"""


class FolderExists(ConfigError):
    """{path} exists; the result of a job goes to a new folder"""


class RoomJobOptions(NamedTuple):
    """Options of jobs that read a database.

    :ivar rooms: room IDs; empty for all
    :ivar parquet: a folder for the result, instead of showing it
    :ivar html: a file for a page of the result
    :ivar other_database_path: a file with the DSN of a second database
    """

    dsn: str | None
    database_path: Path | None
    insecure: bool
    rooms: Sequence[str]
    settings: Mapping[str, str]
    parquet: Path | None
    html: Path | None
    other_database_path: Path | None

    @property
    def is_given(self) -> bool:
        """Whether any of them is given."""
        return any(self)


def room_job_options(command: F) -> F:
    """The options, as ``of_rooms: RoomJobOptions``."""

    @dsn_options
    @click.option("--room", "rooms", multiple=True, help="Only this room; repeatable.")
    @click.option(
        "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Setting of a job of rooms."
    )
    @click.option(
        "--parquet",
        type=click.Path(path_type=Path),
        help="New folder for the result of a job of rooms, as Parquet files.",
    )
    @click.option(
        "--html",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File for a page of the result of a job of rooms, which loads nothing.",
    )
    @click.option(
        "--other-database-path",
        "other_database_path",
        type=click.Path(path_type=Path),
        help="File with the DSN of the other database, for divergence.",
    )
    @wraps(command)
    def with_options(
        *args: Any,
        dsn: str | None,
        database_path: Path | None,
        insecure: bool,
        rooms: Sequence[str],
        settings: Sequence[str],
        parquet: Path | None,
        html: Path | None,
        other_database_path: Path | None,
        **kwargs: Any,
    ) -> Any:
        by_name = {}
        for setting in settings:
            name, equals, value = setting.partition("=")
            if not equals:
                raise NoSetting(setting=setting[:100])
            by_name[name] = value
        paths = parquet, html, other_database_path
        options = RoomJobOptions(dsn, database_path, insecure, rooms, by_name, *paths)
        return command(*args, of_rooms=options, **kwargs)

    return with_options  # type: ignore[return-value]


def find_room_job(name: str) -> SparkRoomJob | None:
    """The job with this name that reads a database; None if there is none."""
    return next((job for job in ROOM_JOBS if job.name == name), None)


def run_room_job(
    job: SparkRoomJob,
    options: RoomJobOptions,
    session: SessionOptions,
    shown: int,
    *,
    as_json: bool,
) -> None:
    """Run a job, and show its result or write it to files.

    :param shown: maximum number of rows to show; with ``as_json`` all are
    """
    dsn = dsn_from_options(options.dsn, options.database_path, options.insecure)
    if dsn is None:
        raise NoDatabaseGiven()
    if options.parquet is not None and options.parquet.exists():
        raise FolderExists(path=options.parquet)
    other = None
    if options.other_database_path is not None:
        other = dsn_from_options(None, options.other_database_path, options.insecure)
    job.check(options.settings, has_second=other is not None)
    wanted = options.rooms or None
    with (
        graceful_exit(),
        open_room_source(dsn, wanted) as source,
        nullcontext()
        if other is None
        else open_room_source(other, wanted, all_there=False) as second,
        named_session(session) as spark,
    ):
        there = None if second is None else second.frames(spark)
        answer = job.run(source.frames(spark), options.settings, there)
        if options.html is not None:
            answer = job.write_page(answer, options.html)
        if options.parquet is not None:
            answer.write.parquet(str(options.parquet.absolute()))
            rows, more = [], 0
        elif as_json:
            rows, more = answer.collect(), 0
        else:
            rows = answer.limit(shown + 1).collect()
            more = len(rows) - shown
    if options.html is not None and not as_json:
        show(f"the page is {printable(str(options.html))}")
    if options.parquet is not None:
        if as_json:
            print_json({"parquet": str(options.parquet)})
        else:
            show(f"{job.title}: written to {printable(str(options.parquet))}")
        return
    found = [with_json_text(row.asDict()) for row in (rows if as_json else rows[:shown])]
    if as_json:
        print_json([{name: plain_cell(cell) for name, cell in row.items()} for row in found])
    else:
        show_rows(job.title, job.schema, found, None if more > 0 else 0, job.nothing)

"""Arguments and options that the lake commands share.

The source database is opened before Spark starts, so that refusals come at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from synrepl.cli.dsn import dsn_from_options, dsn_options
from synrepl.core.errors import ConfigError
from synrepl.driver.blocking import PATIENCE_S
from synrepl.pipeline.lake.storage import LakePath, lake_location
from synrepl.pipeline.lake.table import DEFAULT_RETENTION_HOURS
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.pipeline.source.database.source_database import SourceDatabase

F = TypeVar("F", bound=Callable[..., Any])


class NoDatabaseGiven(ConfigError):
    """which database? give --database DSN, --database-path FILE, or the variable SYNREPL_DATABASE"""


class BadSparkSetting(ConfigError):
    """{setting!r} is no setting: want KEY=VALUE, such as spark.executor.memory=2g"""


def lake_path(ctx: click.Context, param: click.Parameter, value: str | None) -> LakePath | None:
    """Callback of the argument LAKE; refuses other URLs before anything else is done.

    :raises LakeAtUrl: the argument is a URL where no lake can be
    """
    return None if value is None else lake_location(value)


lake_argument = click.argument("path", metavar="LAKE", callback=lake_path)

stream_option = click.option(
    "--stream", "streams", multiple=True, help="Only this stream; repeatable. Default: all."
)


retention_option = click.option(
    "--retention-hours",
    type=click.IntRange(min=0, max=24 * 365),
    help="How long files that were replaced are kept, for readers and time travel; from now on."
    f" Default: what was given before, or {DEFAULT_RETENTION_HOURS}.",
)


def database_options(command: F) -> F:
    """``--database``, ``--database-path`` and ``--insecure``, as ``dsn: str``, and ``--patience``, as ``patience_s: float``."""

    @dsn_options
    @click.option(
        "--patience",
        "patience_s",
        type=click.FloatRange(min=0),
        default=PATIENCE_S,
        show_default=True,
        help="Seconds to retry while the database is unreachable.",
    )
    @wraps(command)
    def with_database(
        *args: Any, dsn: str | None, database_path: Path | None, insecure: bool, **kwargs: Any
    ) -> Any:
        found = dsn_from_options(dsn, database_path, insecure)
        if found is None:
            raise NoDatabaseGiven()
        return command(*args, dsn=found, **kwargs)

    return with_database  # type: ignore[return-value]


def session_options(command: F) -> F:
    """``--master``, ``--driver-memory``, ``--scratch`` and ``--conf``, as ``session: SessionOptions``."""

    @click.option(
        "--master",
        default="local[*]",
        show_default=True,
        help="Where Spark runs: local[N], local-cluster[…], spark://… or sc://… (Spark Connect).",
    )
    @click.option("--driver-memory", default="1g", show_default=True, help="Heap of Spark's JVM.")
    @click.option(
        "--scratch", type=click.Path(path_type=Path), help="Directory for Spark's temporary files."
    )
    @click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Spark setting; repeatable.")
    @wraps(command)
    def with_session(
        *args: Any,
        master: str,
        driver_memory: str,
        scratch: Path | None,
        conf: Sequence[str],
        **kwargs: Any,
    ) -> Any:
        settings = {}
        for setting in conf:
            key, equals, value = setting.partition("=")
            if not equals:
                raise BadSparkSetting(setting=setting[:100])
            settings[key] = value
        options = SessionOptions(
            master=master, driver_memory=driver_memory, local_dir=scratch, conf=settings
        )
        return command(*args, session=options, **kwargs)

    return with_session  # type: ignore[return-value]


def selected_streams(streams: Sequence[str], all_of_them: Sequence[str]) -> list[str]:
    """The streams given, without duplicates; all if none are given."""
    return list(dict.fromkeys(streams)) or list(all_of_them)


@contextmanager
def source_database(dsn: str, instance: str, patience_s: float) -> Iterator[SourceDatabase]:
    """Open the source database for the time of a command.

    :param instance: the application name of the session
    :param patience_s: how long to retry an unreachable database, in seconds
    :raises BadDsn: :raises DatabaseAway: :raises DatabaseRefused: :raises NoStreamTables:
    """
    source = open_source_database(dsn, instance, patience_s)
    try:
        yield source
    finally:
        source.close()


def existing_streams(source: SourceDatabase, streams: Sequence[str]) -> list[str]:
    """The streams given, or all; check that each of them exists in the database.

    :raises NoSuchStream:
    """
    wanted = selected_streams(streams, source.streams)
    for stream in wanted:
        source.stream_schema(stream)
    return wanted

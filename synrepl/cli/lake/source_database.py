"""Opens the source database of a lake before Spark starts, so that refusals come at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from synrepl.cli.lake.options import selected_streams
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.pipeline.source.database.source_database import SourceDatabase


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

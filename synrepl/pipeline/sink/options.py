"""Options of the Spark sink, validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from synrepl.core import names
from synrepl.driver.blocking import PATIENCE_S
from synrepl.pipeline.options import DataSourceOptions

#: The default writer.
WRITER = "spark"

_KNOWN = (
    "database",
    "database_path",
    "insecure",
    "stream",
    "writer",
    "key",
    "positions",
    "on_bad_rows",
    "patience_s",
    "server_name",
)

#: Options that Spark itself adds to those of a sink.
_SPARKS = frozenset({"checkpointlocation", "queryname", "path", "outputmode"})


class Positions(StrEnum):
    """Where the IDs of the facts come from."""

    RESERVE = "reserve"  #: new ones, in the order of the rows
    PRESERVE = "preserve"  #: those in the columns stream_id, row_no and writer


class OnBadRows(StrEnum):
    """What to do with rows that do not fit the stream."""

    QUARANTINE = "quarantine"  #: keep them in synrepl._quarantine, and append the others
    REFUSE = "refuse"  #: append nothing


@dataclass(frozen=True, slots=True, repr=False)
class SinkOptions:
    """The options of one sink, validated. **The DSN may contain a password**, so they have no ``repr``.

    :ivar key: idempotency key; a batch job repeated under the same key writes nothing
    :ivar server_name: the server that the database has to belong to; None for any
    :ivar patience_s: how long to retry while the database is unreachable, in seconds
    """

    database: str
    stream: str
    writer: str = WRITER
    key: str | None = None
    positions: Positions = Positions.RESERVE
    on_bad_rows: OnBadRows = OnBadRows.QUARANTINE
    patience_s: float = PATIENCE_S
    server_name: str | None = None

    @property
    def preserve(self) -> bool:
        """True if rows keep the IDs and writers in their columns."""
        return self.positions is Positions.PRESERVE


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options of ``DataFrameWriter.option``; names are case-insensitive.

    :raises UnknownOption: :raises OptionMissing: :raises BadOption: :raises NoDsnFile:
    :raises BadName: the name of the writer or of the server is invalid
    """
    options = DataSourceOptions("sink", given, _KNOWN, _SPARKS)
    stream = options.needed("stream", "the stream that the rows are appended to")
    positions = options.word("positions", Positions, Positions.RESERVE)
    preserve = positions is Positions.PRESERVE
    if preserve and "writer" in options:
        raise options.bad("writer", "the column 'writer' instead, as positions are preserved")
    # A replay must not leave out a row of a fact, or a whole fact.
    usual = OnBadRows.REFUSE if preserve else OnBadRows.QUARANTINE
    on_bad_rows = options.word("on_bad_rows", OnBadRows, usual)
    if preserve and on_bad_rows is OnBadRows.QUARANTINE:
        raise options.bad("on_bad_rows", "'refuse', as positions are preserved")
    return SinkOptions(
        options.dsn(),
        stream,
        names.writer_name(options.text("writer") or WRITER),
        _key(options),
        positions,
        on_bad_rows,
        options.seconds("patience_s", PATIENCE_S),
        _server_name(options),
    )


def _server_name(options: DataSourceOptions) -> str | None:
    name = options.text("server_name")
    return None if name is None else names.server_name(name)


def _key(options: DataSourceOptions) -> str | None:
    key = options.text("key")
    if key is not None and not (0 < len(key) <= 200 and key.isprintable()):
        raise options.bad("key", "1 to 200 printable characters")
    return key

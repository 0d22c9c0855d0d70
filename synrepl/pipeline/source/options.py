"""Options of the Spark source, validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from synrepl.core.errors import ConfigError
from synrepl.core.names import BadName, follower_name
from synrepl.driver.blocking import PATIENCE_S
from synrepl.pipeline.options import DataSourceOptions
from synrepl.pipeline.source.failover_check import OnFailover
from synrepl.pipeline.source.plan.chunks import CHUNK_ROWS
from synrepl.pipeline.source.position_option import PositionOption, parse_position
from synrepl.pipeline.source.where.condition import Condition
from synrepl.pipeline.source.where.grammar import parse_where

#: How long facts are kept for a follower that is away, in seconds.
LEASE_S = 86_400.0

#: How long a read with an end waits for writes in flight to settle, in seconds.
SETTLE_WAIT_S = 10.0

_BATCH = ("ending",)
_STREAM = ("max_rows_per_batch", "follower", "follower_lease_s", "on_failover")
_BOTH = (
    "database",
    "database_path",
    "insecure",
    "stream",
    "columns",
    "starting",
    "where",
    "on_bad_rows",
    "rows_per_partition",
    "partitions",
    "patience_s",
    "settle_wait_s",
)

#: Value of the option ``stream``: all streams, including those created later.
ALL = "*"


class BadRowsPolicy(StrEnum):
    """What to do with a row that has a value which does not fit its column."""

    FAIL = "fail"  #: end the read with an error that names it
    KEEP = "keep"  #: give it, with the reason and its values as text in columns of their own


class OptionElsewhere(ConfigError):
    """option {option} of the synrepl source is for {there}, and this is {here}; leave it out"""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one source, validated. Pickled for tasks on other machines.

    :ivar dsn: the database; may contain a password
    :ivar streams: the requested names, or :data:`ALL` alone
    :ivar columns: the names of the columns to read; None for all
    :ivar starting: where to begin
    :ivar ending: where a batch ends; None for everything allocated by now, once it is settled
    :ivar where: a condition that the database applies to rows; None for all rows
    :ivar max_rows: approximate maximum number of rows in a micro-batch; None for no limit
    :ivar chunk_rows: approximate number of rows that one task reads
    :ivar on_bad_rows: what to do with a row that has a value which does not fit its column
    :ivar partitions: approximate number of tasks, instead of ``chunk_rows``; None without
    :ivar follower: the name under which processed positions are acknowledged; None to acknowledge nothing
    :ivar lease_s: how long facts are kept for the follower, in seconds
    :ivar on_failover: what a query does if a failover may have lost facts that it has read
    :ivar patience_s: how long to retry while the database is unreachable, in seconds
    :ivar settle_wait_s: how long a read with an end waits for writes in flight to settle, in seconds
    """

    dsn: str = field(repr=False)
    streams: tuple[str, ...]
    columns: tuple[str, ...] | None
    starting: PositionOption
    ending: PositionOption | None
    where: Condition | None
    max_rows: int | None
    chunk_rows: int
    follower: str | None
    lease_s: float
    patience_s: float
    settle_wait_s: float
    on_failover: OnFailover = OnFailover.REFUSE
    partitions: int | None = None
    on_bad_rows: BadRowsPolicy = BadRowsPolicy.FAIL

    @property
    def all_streams(self) -> bool:
        """True for all streams, including those created later."""
        return self.streams == (ALL,)

    @property
    def has_stream_column(self) -> bool:
        """True if rows have a column with the name of their stream."""
        return self.all_streams or len(self.streams) > 1


def parse_source_options(
    options: Mapping[str, str], streaming: bool | None = None
) -> SourceOptions:
    """Parse the options as Spark passes them: names in any case, values as text.

    :param streaming: whether they are for a streaming read; None if that is not known yet
    :raises UnknownOption: :raises OptionMissing: :raises BadOption: :raises OptionElsewhere:
    :raises NoDsnFile: :raises BadPositionOption: :raises BadWhere:
    """
    given = DataSourceOptions("source", options, (*_BOTH, *_BATCH, *_STREAM))
    if streaming is not None:
        _check_use(given, streaming)
    ending = (given.text("ending") or "").strip()
    columns = given.text("columns")
    return SourceOptions(
        dsn=given.dsn(),
        streams=_streams(given),
        columns=None if columns is None else _names(given, "columns", columns),
        starting=parse_position("starting", given.text("starting") or "earliest"),
        ending=parse_position("ending", ending) if ending else None,
        where=None if given.text("where") is None else parse_where(given.text("where") or ""),
        max_rows=given.count("max_rows_per_batch", 1) if "max_rows_per_batch" in given else None,
        chunk_rows=given.count("rows_per_partition", CHUNK_ROWS),
        follower=_follower(given),
        lease_s=given.seconds("follower_lease_s", LEASE_S),
        patience_s=given.seconds("patience_s", PATIENCE_S),
        settle_wait_s=given.seconds("settle_wait_s", SETTLE_WAIT_S),
        on_failover=given.word("on_failover", OnFailover, OnFailover.REFUSE),
        partitions=_partitions(given),
        on_bad_rows=given.word("on_bad_rows", BadRowsPolicy, BadRowsPolicy.FAIL),
    )


def _check_use(given: DataSourceOptions, streaming: bool) -> None:
    reads = ("batch reads (spark.read)", "streaming reads (spark.readStream)")
    here, there = reads[streaming], reads[not streaming]
    for option in _BATCH if streaming else _STREAM:
        if option in given:
            raise OptionElsewhere(option=option, there=there, here=f"one of the {here}")


def _partitions(given: DataSourceOptions) -> int | None:
    if "partitions" not in given:
        return None
    if "rows_per_partition" in given:
        raise given.bad("partitions", "left out when there is rows_per_partition")
    return given.count("partitions", 1)


def _streams(given: DataSourceOptions) -> tuple[str, ...]:
    text = given.needed("stream", f"a name, several with ',' between them, or {ALL} for all")
    names = _names(given, "stream", text)
    if ALL in names and len(names) > 1:
        raise given.bad("stream", f"names, or {ALL} alone")
    return names


def _names(given: DataSourceOptions, option: str, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise given.bad(option, "different names with ',' between them")
    return names


def _follower(given: DataSourceOptions) -> str | None:
    text = given.text("follower")
    if text is None:
        return None
    try:
        return follower_name(text)
    except BadName:
        raise given.bad("follower", "a name: letters, digits and '_.:-'") from None

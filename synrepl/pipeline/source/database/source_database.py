"""The interface of a database whose streams the pipeline reads."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import NamedTuple, Protocol, TypeVar

from synrepl.core.errors import InputError
from synrepl.core.tokens import Range, Token
from synrepl.pipeline.source.database.doubtful_rows import DoubtfulRow
from synrepl.pipeline.source.database.packing import PackedScan
from synrepl.pipeline.source.database.sql import Scan
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.database.whole_events import RedactedRow
from synrepl.pipeline.source.writer_ranges import WriterRanges
from synrepl.positions.vector import PositionVector
from synrepl.storage.foreign.bounds import SafeBound
from synrepl.storage.position_marks import PositionMark

T = TypeVar("T")


class RowCount(NamedTuple):
    """Rows of a stream, counted in the order of their tokens up to a limit.

    :ivar rows: their number; fewer than the limit if there are no more
    :ivar last: the token of the last one counted; None without any
    """

    rows: int
    last: Token | None


class SourceDatabase(Protocol):
    """A database that streams are read from. Keep one object, because safe bounds need repeated observations.

    :ivar server: identifies this database, across restarts and failovers
    :ivar is_lossy: rows may be deleted, or move to a newer ID, after they were read
    :ivar incarnation: of its server, as last observed; always 1 where incarnations are not recorded
    """

    server: str
    is_lossy: bool
    incarnation: int

    @property
    def streams(self) -> Sequence[str]:
        """The names of all streams that can be read."""

    @property
    def left_out(self) -> Mapping[str, str]:
        """The streams that have tables and cannot be read, each with the reason."""

    @property
    def whole_events(self) -> Set[str]:
        """The streams of whole events among them: their rows are facts of other streams, see :mod:`.whole_events`."""

    @property
    def unreadable_whole_events(self) -> Mapping[str, str]:
        """The streams of whole events that it may have and that cannot be read, each with the reason."""

    def refresh(self) -> None:
        """Read again which streams there are, and their columns."""

    def stream_schema(self, stream: str) -> StreamSchema:
        """The columns of a stream.

        :raises NoSuchStream: there is none of that name
        """

    def observe(self, streams: Sequence[str]) -> Mapping[str, SafeBound]:
        """How far each of the streams may be read now.

        :raises NotConfirmed: the server was promoted or restored, and is not confirmed yet
        :raises OlderServer: a newer one was observed before
        """

    def given_out(self, streams: Iterable[str]) -> Mapping[str, Token]:
        """By stream, the last token that can have been given out by now: any other is still to be given out.

        Streams of which that is not certain are left out: all on a standby, and those of a real Synapse
        that have no sequence.
        """

    def survived_since(self, incarnation: int) -> Mapping[str, PositionVector]:
        """By stream, the position up to which all facts survived the failovers since an incarnation.

        Streams that no failover affected are left out.
        """

    def skipped_ranges(self) -> Mapping[str, Sequence[Range]]:
        """By stream, ranges of tokens that failovers skipped and that were never allocated."""

    def scan(
        self,
        stream: str,
        ranges: WriterRanges,
        columns: Sequence[str],
        condition: str = "",
        ordered: bool = True,
    ) -> Scan:
        """A statement that selects rows in the order of their tokens, or else in any order.

        :param ranges: the tokens to read
        :param columns: names of :attr:`.StreamSchema.columns`, in order
        :param condition: a condition on columns, in SQL
        """

    def packed_scan(
        self, stream: str, ranges: WriterRanges, columns: Sequence[str], scan: Scan, rows: int
    ) -> PackedScan | None:
        """A statement that selects the rows of a scan in groups; None if it would not be faster.

        :param columns: what ``scan`` selects
        :param scan: a result of :meth:`scan`
        :param rows: the expected number of rows
        """

    def raw_scan(self, stream: str, ranges: WriterRanges) -> Scan:
        """A statement that selects :data:`.stream_schema.RAW`: all rows, with values not decoded.

        It succeeds where :meth:`scan` fails because of a value. It has no condition ``condition``.
        """

    def estimate_rows(self, stream: str, ranges: WriterRanges) -> int:
        """The estimated number of rows; from table statistics, so it may be far off."""

    def occupied_range(self, stream: str, span: Range) -> Range:
        """The tokens of a range between the first and the last that have rows, empty without any.

        Cheap: returns the range itself where more than an index lookup would be needed.
        """

    def count_rows(self, ranges: Mapping[str, WriterRanges], limit: int) -> Mapping[str, RowCount]:
        """Count the rows of some streams, of each up to a limit, in one transaction.

        :param ranges: by stream, the tokens to count in
        """

    def identity_sql(self) -> str:
        """A statement that is true in the database last observed, if it has replayed its log as far.

        On another machine a DSN may lead to another database, or to a standby that is behind and
        lacks rows below a bound that was observed here.
        """

    def trimmed_sql(self, stream: str) -> str | None:
        """A statement for the token up to which facts have been trimmed; None if there is no trimming."""

    def watermarks(self) -> Mapping[str, Sequence[PositionMark]]:
        """By stream, the recorded positions and their times, in seconds since the epoch."""

    def erased_subjects(self) -> Set[str]:
        """The subjects to erase from copies: user IDs, or other identifying strings."""

    def redacted_events(
        self,
        stream: str,
        since: PositionVector,
        upto: PositionVector,
        collect: Callable[[Iterable[RedactedRow]], T],
    ) -> T:
        """The events to which redactions apply that are facts above ``since`` and at or below ``upto``.

        None for streams that do not have whole events.

        :param upto: at most what is settled
        :param collect: makes the result of the rows, which are fetched as it takes them; called again if the connection is lost
        """

    def explained_rows(self, stream: str, rows: Sequence[DoubtfulRow]) -> Set[int]:
        """Those of some rows of whole events that it may have changed since a lake has them, by their stream IDs.

        :param rows: at most :data:`.ROWS_AT_ONCE`
        """

    def close(self) -> None:
        """Close the connection."""


class NoSuchStream(InputError):
    """there is no stream {stream!r} in this database{hint}; it has {streams}"""


def no_such_stream(name: str, streams: Sequence[str]) -> NoSuchStream:
    """The error for a stream that is not in the database."""
    near = difflib.get_close_matches(name[:100], streams, n=1)
    return NoSuchStream(
        stream=name[:100],
        hint=f"; did you mean {near[0]!r}?" if near else "",
        streams=", ".join(streams) or "none",
    )

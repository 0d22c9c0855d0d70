"""What the pipeline asks of a database that has streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Protocol

from synrepl.core.errors import InputError
from synrepl.core.tokens import Range
from synrepl.pipeline.database.safe_bound import SafeBound
from synrepl.pipeline.database.scan import Scan
from synrepl.pipeline.database.shape import Shape
from synrepl.pipeline.plan.windows import Windows
from synrepl.positions.vector import PositionVector
from synrepl.storage.marks import Mark


class SourceDatabase(Protocol):
    """Where streams come from. Kept for as long as its bounds are asked for: they are found by repeated looks.

    :ivar server: tells this database from any other, over restarts and failovers
    :ivar is_lossy: rows may vanish, or move to a newer ID, after they were read
    :ivar incarnation: of its server, as it was at the last look; 1 where nobody counts them
    """

    server: str
    is_lossy: bool
    incarnation: int

    @property
    def streams(self) -> Sequence[str]:
        """The names of all streams that are in tables here."""

    @property
    def left_out(self) -> Mapping[str, str]:
        """The streams that are in tables here, and cannot be read; why not, for a person."""

    def refresh(self) -> None:
        """Read again which streams there are, and their columns."""

    def shape(self, stream: str) -> Shape:
        """The columns of a stream.

        :raises NoSuchStream: there is none of that name
        """

    def observe(self, streams: Sequence[str]) -> Mapping[str, SafeBound]:
        """How far each of the streams may be read now.

        :raises NotConfirmed: the server was promoted or restored, and is not confirmed yet
        :raises OlderServer: a newer one was looked at before
        """

    def kept_since(self, incarnation: int) -> Mapping[str, PositionVector]:
        """By stream, up to where everything has survived the failovers after an incarnation.

        Streams that no failover concerned are not named.
        """

    def gaps(self) -> Mapping[str, Sequence[Range]]:
        """By stream, tokens that failovers have passed over, and nobody was ever given."""

    def scan(self, stream: str, windows: Windows, columns: Sequence[str], also: str = "") -> Scan:
        """A statement that gives rows, in the order of their tokens.

        :param windows: the tokens wanted
        :param columns: which, of :attr:`.Shape.columns`, in order
        :param also: a condition on columns, in SQL
        """

    def raw(self, stream: str, windows: Windows) -> Scan:
        """A statement that gives :data:`.shape.RAW`: all rows, of which no value is read as its type.

        It succeeds where :meth:`scan` fails because of a value. What ``also`` asked for is not
        looked at.
        """

    def rows(self, stream: str, windows: Windows) -> int:
        """About how many rows there are; from statistics, so it may be far off."""

    def occupied(self, stream: str, span: Range) -> Range:
        """The tokens of a range between the first and the last that have rows, empty without any.

        At little cost: where that takes more than a look at an index, it is the range itself.
        """

    def nth(self, stream: str, windows: Windows, rows: int) -> int | None:
        """The token at which so many rows have been read; None when there are fewer."""

    def reached_sql(self) -> str:
        """A statement that gives true in the database that was looked at last, as far as it was then.

        A DSN may lead somewhere else from another machine, or to a standby that is behind:
        there, rows up to a bound that was found here may be missing.
        """

    def trimmed_sql(self, stream: str) -> str | None:
        """A statement for up to where facts are gone by now; None where nobody trims."""

    def marks(self) -> Mapping[str, Sequence[Mark]]:
        """By stream, where it was on record at some times, as far as the database tells; in seconds since the epoch."""

    def subjects(self) -> Set[str]:
        """Who is to be erased from what was copied: user IDs, or other texts that stand for somebody."""

    def close(self) -> None:
        """End the connection."""


class NoSuchStream(InputError):
    """there is no stream {stream!r} in this database{hint}; it has {streams}"""

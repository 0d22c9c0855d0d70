"""The report of a check of a lake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from synrepl.core.tokens import Token
from synrepl.pipeline.lake.failover.lost_rows import LostRows

#: What can be wrong with a row; words of the report.
MISSING, ONLY_IN_LAKE, DOUBLED, CHANGED = "missing", "only in the lake", "doubled", "changed"


class Outcome(StrEnum):
    """The outcome for one stream, or the worst outcome of all streams."""

    EQUAL = "equal"
    LOST = "lost in a failover"
    NOT_COMPARED = "not compared"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Example:
    """One row that differs.

    :ivar what: one of the words above
    :ivar columns: the columns that differ, if the row is ``changed`` and they are known
    """

    what: str
    stream_id: int
    row_no: int | None
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        row = "" if self.row_no is None else f", row {self.row_no}"
        columns = f" in {', '.join(self.columns)}" if self.columns else ""
        return f"fact {self.stream_id}{row}: {self.what}{columns}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A range of tokens whose rows differ: above ``after``, up to ``upto``.

    :ivar missing: number of rows that only the source has
    :ivar only_in_lake: number of rows that only the lake has
    :ivar doubled: number of superfluous duplicates in the lake
    :ivar changed: number of rows that both have, with different values
    """

    after: Token
    upto: Token
    source_rows: int
    lake_rows: int
    missing: int
    only_in_lake: int
    doubled: int
    changed: int

    def __str__(self) -> str:
        counts = ((self.missing, MISSING), (self.only_in_lake, ONLY_IN_LAKE),
                  (self.doubled, DOUBLED), (self.changed, CHANGED))  # fmt: skip
        found = ", ".join(f"{count} {what}" for count, what in counts if count)
        return f"tokens {self.after + 1} to {self.upto}: {found}"


@dataclass(frozen=True, slots=True)
class StreamReport:
    """The result for one stream.

    :ivar after: tokens at or below it are trimmed in the source, so they were not checked
    :ivar upto: the position up to which it was checked
    :ivar source_rows: number of rows compared in the source
    :ivar lake_rows: number of rows compared in the lake
    :ivar gone: number of rows of the lake that the source has deleted, as real servers do, and of whole
        events that it has purged
    :ivar revised: number of whole events that the source has judged again or redacted since
    :ivar lost: rows of the lake that the database lost in failovers
    :ivar goes_on_to: the source's last token if it is beyond ``upto``; otherwise 0
    :ivar quarantined: number of rows in the lake's quarantine, which are not compared
    :ivar not_in_lake: columns that the lake does not have yet, which are not compared
    :ivar not_compared: why nothing of the stream could be compared; "" if it was
    """

    stream: str
    after: Token = 0
    upto: Token = 0
    ranges: int = 0
    source_rows: int = 0
    lake_rows: int = 0
    gone: int = 0
    revised: int = 0
    goes_on_to: Token = 0
    quarantined: int = 0
    not_in_lake: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    examples: tuple[Example, ...] = ()
    lost: tuple[LostRows, ...] = ()
    not_compared: str = ""

    @property
    def outcome(self) -> Outcome:
        """Whether the lake has exactly the right rows, as far as they were compared."""
        if self.not_compared:
            return Outcome.NOT_COMPARED
        if self.differences:
            return Outcome.DIFFERENT
        return Outcome.LOST if self.lost else Outcome.EQUAL

    @property
    def equal(self) -> bool:
        """True if the lake has exactly the right rows."""
        return self.outcome is Outcome.EQUAL

    @property
    def problems(self) -> list[str]:
        """A line per problem."""
        if self.not_compared:
            return [f"stream {self.stream!r} was not compared: {self.not_compared}"]
        lines = map(str, (*self.differences, *self.examples, *self.lost))
        return [f"stream {self.stream!r}, {line}" for line in lines]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The results for all streams that were checked.

    :ivar streams_not_in_lake: streams of the source that have not been landed
    :ivar left_out: by stream that cannot be read from the source, the reason
    """

    streams: Sequence[StreamReport]
    streams_not_in_lake: Sequence[str] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of the streams; without any stream, nothing was compared."""
        found = {each.outcome for each in self.streams} or {Outcome.NOT_COMPARED}
        return next(each for each in reversed(Outcome) if each in found)

    @property
    def equal(self) -> bool:
        """True if everything was compared, and the lake has exactly the right rows."""
        return self.outcome is Outcome.EQUAL

    @property
    def problems(self) -> list[str]:
        """A line per problem; empty without any."""
        if not self.streams:
            return ["the lake has no streams, so nothing was compared: land some"]
        return [line for each in self.streams for line in each.problems]

    def to_json(self) -> dict[str, Any]:
        """``{"outcome": "equal", "equal": true, "streams": [{"stream": "events", "source_rows": 10, …}]}``."""
        return {
            "outcome": self.outcome,
            "equal": self.equal,
            "streams": [
                {**asdict(each), "outcome": each.outcome, "equal": each.equal}
                for each in self.streams
            ],
            "streams_not_in_lake": list(self.streams_not_in_lake),
            "left_out": dict(self.left_out),
        }

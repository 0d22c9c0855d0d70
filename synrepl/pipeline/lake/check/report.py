"""What checking a lake has found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from synrepl.core.tokens import Token
from synrepl.pipeline.lake.failover.lost_rows import LostRows

#: What can be wrong with a row, in the words of the report.
MISSING, ONLY_IN_LAKE, DOUBLED, CHANGED = "missing", "only in the lake", "doubled", "changed"


class Outcome(StrEnum):
    """What came of one stream, or of all of them; the worst of several counts."""

    EQUAL = "equal"
    LOST = "lost in a failover"
    NOT_COMPARED = "not compared"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Example:
    """One row that differs.

    :ivar what: one of the words above
    :ivar columns: those that have another value, where it is ``changed`` and they are known
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

    :ivar missing: rows that the source has, and not the lake
    :ivar only_in_lake: the other way round
    :ivar doubled: rows that the lake has more than once: how many too many
    :ivar changed: rows that both have, with other values
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
    """One stream.

    :ivar after: the source has no more what is at or below it: that was not checked
    :ivar upto: up to here the lake has the stream
    :ivar source_rows: as many as were compared, and ``lake_rows`` on the other side
    :ivar gone: rows of the lake that the source has had and deleted, as real servers do
    :ivar lost: rows of the lake that the database lost in failovers
    :ivar goes_on_to: the source's last token, where that is beyond ``upto``; 0 where it is not
    :ivar quarantined: rows that did not fit their columns, and are in the lake's quarantine: not compared
    :ivar not_in_lake: columns that the source has, and the lake not yet: not compared
    :ivar not_compared: why nothing of the stream could be compared; "" when it was
    """

    stream: str
    after: Token = 0
    upto: Token = 0
    ranges: int = 0
    source_rows: int = 0
    lake_rows: int = 0
    gone: int = 0
    goes_on_to: Token = 0
    quarantined: int = 0
    not_in_lake: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    examples: tuple[Example, ...] = ()
    lost: tuple[LostRows, ...] = ()
    not_compared: str = ""

    @property
    def outcome(self) -> Outcome:
        """Whether the lake has exact_value what it should, as far as it was compared."""
        if self.not_compared:
            return Outcome.NOT_COMPARED
        if self.differences:
            return Outcome.DIFFERENT
        return Outcome.LOST if self.lost else Outcome.EQUAL

    @property
    def equal(self) -> bool:
        """True when the lake has exact_value what it should."""
        return self.outcome is Outcome.EQUAL

    @property
    def problems(self) -> list[str]:
        """A line for each thing that is wrong."""
        if self.not_compared:
            return [f"stream {self.stream!r} was not compared: {self.not_compared}"]
        lines = map(str, (*self.differences, *self.examples, *self.lost))
        return [f"stream {self.stream!r}, {line}" for line in lines]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All streams that were checked.

    :ivar streams_not_in_lake: streams that the source has, and the lake not: nobody asked for them
    """

    streams: Sequence[StreamReport]
    streams_not_in_lake: Sequence[str] = ()

    @property
    def outcome(self) -> Outcome:
        """Whether the lake has exact_value what it should; of no stream at all, nothing was compared."""
        found = {each.outcome for each in self.streams} or {Outcome.NOT_COMPARED}
        return next(each for each in reversed(Outcome) if each in found)

    @property
    def equal(self) -> bool:
        """True when everything was compared, and the lake has exact_value what it should."""
        return self.outcome is Outcome.EQUAL

    @property
    def problems(self) -> list[str]:
        """A line for each thing that is wrong; none when nothing is."""
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
        }

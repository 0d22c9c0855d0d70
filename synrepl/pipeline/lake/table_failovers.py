"""What a table of the lake knows of its database's failovers.

A server that was promoted may lack commits, so the lake may have rows that the database lost. They
stay. Before anything of the new server is landed, the table notes where it was: only what it had by
then, and what is not proven to have survived, can be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from synrepl.core.tokens import Range
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.writer_ranges import WriterRanges
from synrepl.positions.vector import PositionVector
from synrepl.storage.store import OlderServer


class LossWindow(msgspec.Struct, frozen=True):
    """Rows among which those are that one failover has lost.

    :ivar incarnation: of the server after it
    :ivar kept_json: everything up to this position has survived
    :ivar landed_json: the lake had everything up to this position
    """

    incarnation: int
    kept_json: dict[str, Any]
    landed_json: dict[str, Any]

    @property
    def kept(self) -> PositionVector:
        """Everything up to here has survived."""
        return PositionVector.from_json(self.kept_json)

    @property
    def landed(self) -> PositionVector:
        """Up to here the lake had everything."""
        return PositionVector.from_json(self.landed_json)

    @property
    def ranges(self) -> WriterRanges:
        """The tokens in between, writer by writer."""
        return WriterRanges.between(self.kept, self.landed)


class TableFailovers(msgspec.Struct, frozen=True):
    """Of one table.

    :ivar incarnation: of the server that it was landed from last
    :ivar gaps: tokens that nobody was ever given, each as after and up to
    :ivar lost: one for each failover that may have lost rows of the table
    """

    incarnation: int = 1
    gaps: tuple[tuple[int, int], ...] = ()
    lost: tuple[LossWindow, ...] = ()

    @property
    def skipped_ranges(self) -> Sequence[Range]:
        """The gaps."""
        return [Range(*gap) for gap in self.gaps]


def update_failovers(
    stream: str, known: TableFailovers, position: PositionVector, source: SourceDatabase
) -> TableFailovers:
    """What a table has to know, after the failovers that it has not heard of.

    :param position: of the table
    :param source: its streams were looked at
    :raises OlderServer: the table was landed from a newer server
    """
    now = source.incarnation
    if now < known.incarnation:
        raise OlderServer(found=now, newest=known.incarnation)
    if now == known.incarnation:
        return known
    lost = known.lost
    kept = source.survived_since(known.incarnation).get(stream)
    if kept is not None:
        window = LossWindow(now, kept.to_json(), position.to_json())
        if not window.ranges.empty:
            lost = (*lost, window)
    gaps = tuple((gap.after, gap.upto) for gap in source.skipped_ranges().get(stream, ()))
    return TableFailovers(now, gaps, lost)

"""The failovers of the database that a table of the lake has recorded.

A promoted server may lack commits, so the lake may have rows that the database lost. They stay in
the lake. Before anything of the new server is landed, the table records its position: only rows that
it had by then, and that are not proven to have survived, can be lost.
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
    """The range of tokens in which one failover may have lost rows.

    :ivar incarnation: of the server after the failover
    :ivar kept_json: everything up to this position has survived
    :ivar landed_json: the lake had everything up to this position
    """

    incarnation: int
    kept_json: dict[str, Any]
    landed_json: dict[str, Any]

    @property
    def kept(self) -> PositionVector:
        """The position up to which everything has survived."""
        return PositionVector.from_json(self.kept_json)

    @property
    def landed(self) -> PositionVector:
        """The position of the lake at the failover."""
        return PositionVector.from_json(self.landed_json)

    @property
    def ranges(self) -> WriterRanges:
        """The tokens between these positions, by writer."""
        return WriterRanges.between(self.kept, self.landed)


class TableFailovers(msgspec.Struct, frozen=True):
    """The failovers recorded by one table, stored as JSON in its properties.

    :ivar incarnation: of the server from which the table was landed last
    :ivar gaps: ranges of tokens that were never allocated, each as ``(after, upto)``
    :ivar lost: one for each failover that may have lost rows of the table
    """

    incarnation: int = 1
    gaps: tuple[tuple[int, int], ...] = ()
    lost: tuple[LossWindow, ...] = ()

    @property
    def skipped_ranges(self) -> Sequence[Range]:
        """The gaps as ranges."""
        return [Range(*gap) for gap in self.gaps]


def update_failovers(
    stream: str, known: TableFailovers, position: PositionVector, source: SourceDatabase
) -> TableFailovers:
    """Add the failovers since those that a table has recorded.

    :param position: the position of the table
    :param source: its streams have been observed
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

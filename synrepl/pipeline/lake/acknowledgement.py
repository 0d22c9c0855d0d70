"""The positions up to which a lake needs no facts of its source any more, so that they may be trimmed."""

from __future__ import annotations

from collections.abc import Mapping

from synrepl.pipeline.lake.erase.erasure_record import read_erasure_record
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.database.whole_events import BASES, common_position
from synrepl.positions.vector import PositionVector


def acknowledged_positions(
    lake: Lake, source: SourceDatabase, landed: Mapping[str, PositionVector]
) -> dict[str, PositionVector]:
    """The positions to acknowledge when a lake has been landed up to ``landed``.

    The facts of whole events are needed until all tables have them that are made of them, and until the lake has been searched
    for redactions among them: when the event has been purged, the fact is all that is left of a redaction.

    :raises ErasureRecordUnreadable:
    """
    found = dict(landed)
    record = None
    for stream in source.whole_events:
        pair = (stream, BASES[stream])
        if not any(each in landed for each in pair):
            continue
        for each in pair:
            if each not in found and lake.has_stream(each):
                found[each] = lake.table(each).position
        if stream in found:
            record = read_erasure_record(lake) if record is None else record
            found[stream] = common_position(found[stream], record.position(stream))
    return found

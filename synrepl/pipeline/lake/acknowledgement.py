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
    for redactions among them: when the event has been purged, the fact is all that is left of a redaction. That holds also while
    the source does not offer whole events that the lake has, because a right or an upgrade is missing: they go on later.

    :raises ErasureRecordUnreadable:
    """
    found = dict(landed)
    record = None
    for stream, base in BASES.items():
        table = lake.whole_event_table(stream) if {stream, base} & landed.keys() else None
        if table is None:
            continue
        record = read_erasure_record(lake) if record is None else record
        needed = common_position(landed.get(stream, table.position), record.position(stream))
        if stream in source.whole_events:
            found[stream] = needed
            if base not in found and lake.has_stream(base):
                found[base] = lake.table(base).position
        elif base in found:
            found[base] = common_position(found[base], needed)
    return found


def streams_left_out(lake: Lake, source: SourceDatabase) -> dict[str, str]:
    """The streams that cannot be landed because the source cannot read them, each with the reason.

    Whole events are among them only if the lake has some: others need no rights to the tables of rooms.
    """
    unreadable = source.unreadable_whole_events
    missed = {
        stream: why
        for stream, why in unreadable.items()
        if lake.whole_event_table(stream) is not None
    }
    return {**source.left_out, **missed}

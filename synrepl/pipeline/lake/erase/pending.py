"""Finds pending erasures: subjects in the database, redactions in the lake's own rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from synrepl.pipeline.lake.erase.erasure_record import (
    ErasureRecord,
    read_erasure_record,
    write_erasure_record,
)
from synrepl.pipeline.lake.erase.erasures import RULES, Epochs, Erasures
from synrepl.pipeline.lake.erase.redacted_events import AppliedRedactions, RedactedEvents
from synrepl.pipeline.lake.erase.redaction_index import RedactionIndex, redaction_folder
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.on_demand import SessionOnDemand, on_demand
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.database.whole_events import (
    BASES,
    common_position,
)
from synrepl.positions.vector import PositionVector


@dataclass(frozen=True, slots=True)
class PendingErasures:
    """The pending erasures at one moment.

    :ivar known: everything: masks rows as they are landed, and the source's rows in checks
    :ivar new: what files of the lake may still contain
    :ivar record: the record of the erasures so far
    :ivar upto: by stream, the position up to which rows were searched for redactions
    :ivar epochs: of the tables, read before anything else; None if the lake has locks
    """

    known: Erasures
    new: Erasures
    record: ErasureRecord
    upto: Mapping[str, PositionVector]
    epochs: Epochs | None = None


def pending(
    spark: SparkSession | SessionOnDemand,
    source: SourceDatabase,
    lake: Lake,
    redactions: RedactionIndex | None = None,
) -> PendingErasures:
    """Find the pending erasures of a lake.

    Call it, and use the result, within :meth:`.Lake.write_lock`: rows landed with an older result
    would not be masked for newer erasures.

    :param spark: called for a session only if there are many rows to search
    :param redactions: keeps the redactions found, for the next call
    :raises ErasureRecordUnreadable: :raises DatabaseAway: :raises QueryFailed: the database's user
        may not read who is to be erased
    """
    redactions = RedactionIndex(lake) if redactions is None else redactions
    epochs = _epochs(lake) if lake.is_shared else None
    subjects = frozenset(filter(None, source.erased_subjects()))
    remembered = read_erasure_record(lake)
    # Subjects removed from the list are no longer masked, so they count as new if they return.
    record = remembered.restricted_to(subjects)
    if record != remembered:
        write_erasure_record(lake, record)
    known = new = RedactedEvents()
    upto: dict[str, PositionVector] = {}
    for rule in RULES:
        table = lake.table(rule.stream) if lake.has_stream(rule.stream) else None
        if table is None or not rule.fits(table.stream_schema):
            continue
        upto[rule.stream] = table.position
        redactions.update(on_demand(spark), table, rule, record.position(rule.stream))
        known |= redactions.redacted(rule.stream)
        new |= redactions.new(rule.stream)
    applied, reached = _applied(source, lake, record)
    upto |= reached
    return PendingErasures(
        Erasures(subjects, known),
        Erasures(record.unrecorded(subjects), new, applied),
        record,
        upto,
        epochs,
    )


def _applied(
    source: SourceDatabase, lake: Lake, record: ErasureRecord
) -> tuple[AppliedRedactions, dict[str, PositionVector]]:
    """The whole events of a lake to which redactions apply that were not looked for yet.

    :returns: also the positions up to which they have been looked for by then. Rows that are landed later are read in
        the form that they have by these redactions
    """
    found, collect = AppliedRedactions(), AppliedRedactions.collected_in(redaction_folder(lake))
    upto: dict[str, PositionVector] = {}
    landed = {stream: table.position for stream, table in _whole_event_tables(lake).items()}
    # A redaction in one stream may apply to events in the other, also if only one of them is landed.
    for stream in BASES if landed else ():
        since = upto[stream] = record.position(stream)
        if stream in source.whole_events:
            # A standby may be behind the lake.
            settled = source.observe([stream])[stream].bound
            upto[stream] = since.merge(common_position(landed.get(stream, settled), settled))
            found |= source.redacted_events(stream, since, upto[stream], collect)
    return found, upto


def _whole_event_tables(lake: Lake) -> dict[str, StreamTable]:
    """The tables of whole events that a lake has."""
    tables = {stream: lake.whole_event_table(stream) for stream in BASES}
    return {stream: table for stream, table in tables.items() if table is not None}


def skip_earlier_redactions(source: SourceDatabase, lake: Lake) -> None:
    """Record that a lake without whole events need not be searched for the redactions so far.

    Rows that are read from now on have the form that they have by these. Without it, the first landing would be followed by
    a search for all redactions of the database. Call it before landing, within :meth:`.Lake.write_lock`.

    In an object store it does nothing: another process may have read rows, and not committed them yet.

    :raises ErasureRecordUnreadable:
    """
    whole = sorted(source.whole_events)
    if lake.is_shared or not whole:
        return
    if any(table.has_position for table in _whole_event_tables(lake).values()):
        return
    observed = source.observe(whole)
    before = read_erasure_record(lake)
    record = before.searched({stream: observed[stream].bound for stream in whole})
    if record != before:
        write_erasure_record(lake, record)


def _epochs(lake: Lake) -> Epochs:
    streams = lake.streams
    quarantines = {stream: lake.quarantine(stream) for stream in streams}
    return Epochs(
        {stream: lake.table(stream).epoch for stream in streams},
        {stream: table.epoch for stream, table in quarantines.items() if table is not None},
    )

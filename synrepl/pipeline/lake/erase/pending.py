"""Finds pending erasures: subjects in the database, redactions in the lake's own rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from synrepl.pipeline.lake.dataframe import table_dataframe
from synrepl.pipeline.lake.erase.erasure_record import (
    ErasureRecord,
    read_erasure_record,
    write_erasure_record,
)
from synrepl.pipeline.lake.erase.erasures import RULES, Epochs, ErasureRule, Erasures, RoomEvent
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.database.whole_events import (
    BASES,
    StreamIds,
    common_position,
    has_whole_events,
)
from synrepl.positions.vector import PositionVector

#: The token and the writer of a redaction, and the event that it redacts.
_Redaction = tuple[int, str, RoomEvent]


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


class RedactionCache:
    """The redactions among the rows of a lake. Keep one object, because it reads each file once."""

    def __init__(self) -> None:
        self._read: dict[str, frozenset[str]] = {}
        self._found: dict[str, set[_Redaction]] = {}

    def of(self, spark: SparkSession, table: StreamTable, rule: ErasureRule) -> set[_Redaction]:
        """The redactions in a stream's table; they take some 300 bytes each."""
        files = table.files
        read = self._read.get(table.stream, frozenset())
        found = self._found.setdefault(table.stream, set())
        new = [file for file in files if file.name not in read]
        if new:
            found.update(find_redactions(table_dataframe(spark, table, new), rule))
        self._read[table.stream] = frozenset(file.name for file in files)
        return found


def pending(
    spark: SparkSession,
    source: SourceDatabase,
    lake: Lake,
    redactions: RedactionCache | None = None,
) -> PendingErasures:
    """Find the pending erasures of a lake.

    Call it, and use the result, within :meth:`.Lake.write_lock`: rows landed with an older result
    would not be masked for newer erasures.

    :param redactions: keeps the redactions found, for the next call
    :raises ErasureRecordUnreadable: :raises DatabaseAway: :raises QueryFailed: the database's user
        may not read who is to be erased
    """
    redactions = RedactionCache() if redactions is None else redactions
    epochs = _epochs(lake) if lake.is_shared else None
    subjects = frozenset(filter(None, source.erased_subjects()))
    remembered = read_erasure_record(lake)
    # Subjects removed from the list are no longer masked, so they count as new if they return.
    record = remembered.restricted_to(subjects)
    if record != remembered:
        write_erasure_record(lake, record)
    known: set[RoomEvent] = set()
    new: set[RoomEvent] = set()
    upto: dict[str, PositionVector] = {}
    for rule in RULES:
        table = lake.table(rule.stream) if lake.has_stream(rule.stream) else None
        if table is None or not rule.fits(table.stream_schema):
            continue
        upto[rule.stream] = table.position
        since = record.position(rule.stream)
        for token, writer, event in redactions.of(spark, table, rule):
            known.add(event)
            if token > since[writer]:
                new.add(event)
    applied, reached = _applied(source, lake, record)
    upto |= reached
    return PendingErasures(
        Erasures(subjects, frozenset(known)),
        Erasures(record.unrecorded(subjects), frozenset(new), frozenset(applied), _known(applied)),
        record,
        upto,
        epochs,
    )


def _applied(
    source: SourceDatabase, lake: Lake, record: ErasureRecord
) -> tuple[StreamIds, dict[str, PositionVector]]:
    """The whole events of a lake to which redactions apply that were not looked for yet.

    :returns: also the positions up to which they have been looked for by then. Rows that are landed later are read in
        the form that they have by these redactions
    """
    found: dict[RoomEvent, int | None] = {}
    upto: dict[str, PositionVector] = {}
    for stream in BASES:
        table = lake.table(stream) if lake.has_stream(stream) else None
        if table is None or not has_whole_events(table.stream_schema):
            continue
        since = upto[stream] = record.position(stream)
        if stream in source.streams:
            # A standby may be behind the lake.
            settled = source.observe([stream])[stream].bound
            upto[stream] = since.merge(common_position(table.position, settled))
            found |= source.redacted_events(stream, since, upto[stream])
    return found, upto


def _known(applied: StreamIds) -> frozenset[int] | None:
    """The stream IDs of events; None if some are not known."""
    ids = frozenset(each for each in applied.values() if each is not None)
    return None if None in applied.values() else ids


def _epochs(lake: Lake) -> Epochs:
    streams = lake.streams
    quarantines = {stream: lake.quarantine(stream) for stream in streams}
    return Epochs(
        {stream: lake.table(stream).epoch for stream in streams},
        {stream: table.epoch for stream, table in quarantines.items() if table is not None},
    )


def find_redactions(rows: DataFrame, rule: ErasureRule) -> Iterator[_Redaction]:
    """The redactions among some rows: the token and writer of each, and the event that it redacts."""
    redacting = f.col(rule.trigger).isNotNull()
    if rule.kind is not None:
        redacting &= f.col("kind") == rule.kind
    if rule.unless is not None:
        redacting &= ~f.coalesce(f.col(rule.unless), f.lit(False))
    found: pa.Table = (
        rows.where(redacting).select("stream_id", "writer", rule.within, rule.trigger).toArrow()
    )
    for batch in found.to_batches():
        tokens = pc.abs(batch.column("stream_id")).to_pylist()
        # A room ID that has been erased itself is no longer known.
        rooms = pc.fill_null(batch.column(rule.within), "").to_pylist()
        events = batch.column(rule.trigger).to_pylist()
        yield from zip(
            tokens,
            batch.column("writer").to_pylist(),
            zip(rooms, events, strict=True),
            strict=True,
        )

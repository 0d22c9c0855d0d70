"""What is recorded of imports of rooms: progress, findings and events in quarantine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from synrepl.storage.database import Transaction


class RecordedSource(NamedTuple):
    """From where on a source's streams are to be followed.

    :ivar events: position in its stream ``events``
    :ivar backfill: position in its stream ``backfill``
    """

    events: int
    backfill: int


class RecordedRoom(NamedTuple):
    """How far the import of a room is.

    :ivar topological: topological ordering of the last event
    :ivar stream: stream ordering of the last event
    :ivar state_group: the last of the groups that are the state of no event
    :ivar left_out: why the room was not imported; None if it was, or is being imported
    :ivar counts: encoded as JSON
    """

    topological: int
    stream: int
    state_group: int
    finished: bool
    left_out: str | None
    counts: str


class FindingRow(NamedTuple):
    """A finding.

    :ivar digest: identifies it
    :ivar finding: encoded as JSON
    """

    digest: bytes
    room_id: str
    kind: str
    event_id: str
    finding: str


class QuarantineRow(NamedTuple):
    """An event in quarantine.

    :ivar raw: its bytes at the source; None if there are none
    """

    event_id: str
    room_id: str
    raw: bytes | None
    reason: str


def read_source(txn: Transaction, source: str) -> RecordedSource | None:
    """The positions from which on a source is to be followed; None before its first import."""
    txn.execute(
        "SELECT events, backfill FROM synrepl._room_import_sources WHERE source = %s", (source,)
    )
    row = txn.fetchone_or_none()
    return None if row is None else RecordedSource(*row)


def write_source(txn: Transaction, source: str, positions: RecordedSource) -> None:
    """Record positions."""
    txn.execute(
        "INSERT INTO synrepl._room_import_sources (source, events, backfill) VALUES (%s, %s, %s)"
        " ON CONFLICT (source) DO UPDATE SET events = EXCLUDED.events, backfill = EXCLUDED.backfill",
        (source, *positions),
    )


def read_import(txn: Transaction, source: str, room_id: str) -> RecordedRoom | None:
    """How far a room's import is; None if it has not begun."""
    txn.execute(
        "SELECT topological, stream, state_group, finished, left_out, counts::text"
        " FROM synrepl._room_imports WHERE source = %s AND room_id = %s",
        (source, room_id),
    )
    row = txn.fetchone_or_none()
    return None if row is None else RecordedRoom(*row)


def write_import(txn: Transaction, source: str, room_id: str, room: RecordedRoom) -> None:
    """Record how far a room's import is."""
    txn.execute(
        "INSERT INTO synrepl._room_imports"
        " (source, room_id, topological, stream, state_group, finished, left_out, counts)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
        " ON CONFLICT (source, room_id) DO UPDATE SET topological = EXCLUDED.topological,"
        " stream = EXCLUDED.stream, state_group = EXCLUDED.state_group,"
        " finished = EXCLUDED.finished, left_out = EXCLUDED.left_out, counts = EXCLUDED.counts,"
        " updated_at = now()",
        (source, room_id, *room),
    )


def left_out_rooms(txn: Transaction, source: str) -> dict[str, str]:
    """By room ID, why a room was not imported."""
    txn.execute(
        "SELECT room_id, left_out FROM synrepl._room_imports"
        " WHERE source = %s AND left_out IS NOT NULL ORDER BY room_id",
        (source,),
    )
    return dict(txn.fetchall())


def recorded_counts(txn: Transaction, source: str) -> list[str]:
    """The counts of every room that was not left out, encoded as JSON."""
    txn.execute(
        "SELECT counts::text FROM synrepl._room_imports WHERE source = %s AND left_out IS NULL",
        (source,),
    )
    return [str(counts) for (counts,) in txn.fetchall()]


def imperfect_rooms(txn: Transaction, source: str, after: str, limit: int) -> list[str]:
    """A page of the imported rooms with findings, events in quarantine, or signatures that were not checked.

    :param after: only rooms behind this one
    """
    txn.execute(
        "SELECT room_id FROM synrepl._room_imports WHERE source = %s AND room_id > %s AND finished"
        " AND (counts->'findings' <> '{}' OR (counts->>'quarantined')::bigint > 0"
        " OR (counts->>'unverified')::bigint > 0) ORDER BY room_id LIMIT %s",
        (source, after, limit),
    )
    return [str(room_id) for (room_id,) in txn.fetchall()]


def replace_import(txn: Transaction, source: str, room_id: str, other: str) -> None:
    """Replace all that is recorded of a room by what is recorded of it under another source's name."""
    for table in ("findings", "quarantine"):
        txn.execute(
            f"DELETE FROM synrepl._room_import_{table} WHERE source = %s AND room_id = %s",
            (source, room_id),
        )
    txn.execute(
        "DELETE FROM synrepl._room_imports WHERE source = %s AND room_id = %s", (source, room_id)
    )
    for table in ("_room_import_findings", "_room_import_quarantine", "_room_imports"):
        txn.execute(
            f"UPDATE synrepl.{table} SET source = %s WHERE source = %s AND room_id = %s",
            (source, other, room_id),
        )


def add_findings(txn: Transaction, source: str, findings: Iterable[FindingRow]) -> None:
    """Record findings; those that are recorded already stay as they are."""
    txn.insert_many(
        "INSERT INTO synrepl._room_import_findings"
        " (source, digest, room_id, kind, event_id, finding) VALUES %s ON CONFLICT DO NOTHING",
        [(source, *row) for row in findings],
    )


def read_findings(txn: Transaction, source: str, room_id: str | None, limit: int) -> Sequence[str]:
    """Findings encoded as JSON, those found first before others.

    :param room_id: of this room; by default of all
    """
    txn.execute(
        "SELECT finding::text FROM synrepl._room_import_findings"
        " WHERE source = %s AND (room_id = %s OR %s) ORDER BY found_at, room_id, event_id LIMIT %s",
        (source, room_id, room_id is None, limit),
    )
    return [str(finding) for (finding,) in txn.fetchall()]


def add_to_quarantine(txn: Transaction, source: str, rows: Iterable[QuarantineRow]) -> None:
    """Keep events apart; those that are there already stay as they are."""
    txn.insert_many(
        "INSERT INTO synrepl._room_import_quarantine (source, event_id, room_id, raw, reason)"
        " VALUES %s ON CONFLICT DO NOTHING",
        [(source, *row) for row in rows],
    )


def read_quarantine(
    txn: Transaction, source: str, after: str = "", limit: int = 1000
) -> list[QuarantineRow]:
    """A page of the events in quarantine, by event ID.

    :param after: only events behind this one
    """
    txn.execute(
        "SELECT event_id, room_id, raw, reason FROM synrepl._room_import_quarantine"
        " WHERE source = %s AND event_id > %s ORDER BY event_id LIMIT %s",
        (source, after, limit),
    )
    return [QuarantineRow(*row) for row in txn.fetchall()]

"""Checks the events of a room: bytes against checksums, hashes and IDs, columns and edges against the JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from unpaddedbase64 import decode_base64

from synrepl.rooms import (
    BadEvent,
    Event,
    RoomVersion,
    StateKey,
    auth_dependencies,
    canonical_json,
    parse_event,
    redact,
    room_version,
)
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.erased_form import erased_form
from synrepl.storage.rooms.maintenance.findings import CheckedPage, RoomFinding, RoomProblem
from synrepl.storage.rooms.tables.events import (
    FROM_EVENTS,
    STORED_EVENT,
    EventFlags,
    StoredEvent,
    checksum,
    stored_event,
)
from synrepl.storage.rooms.tables.numbers import RoomRow

#: Where the events begin.
FIRST_EVENTS = (False, -(1 << 63))


class _Page(NamedTuple):
    """What the events of a page refer to.

    :ivar ids: by number: event ID and room
    :ivar missing: by event number: prev events that are not here
    """

    rows: Sequence[StoredEvent]
    json: Mapping[int, tuple[int, bytes]]
    ids: Mapping[int, tuple[str, int]]
    keys: Mapping[int, StateKey]
    missing: Mapping[int, set[str]]


def verify_events(
    txn: Transaction, room: RoomRow, after: tuple[bool, int], limit: int
) -> CheckedPage:
    """Check a page of a room's events, those in streams first, then outliers.

    :param after: :data:`FIRST_EVENTS`, or where the page before ended
    """
    outliers, position = after
    order, kind = ("event_no", "IS NULL") if outliers else ("stream_id", "IS NOT NULL")
    txn.execute(
        f"SELECT {STORED_EVENT} {FROM_EVENTS} WHERE e.room_no = %s AND e.stream_id {kind}"
        f" AND e.{order} > %s ORDER BY e.{order} LIMIT %s",
        (room.room_no, position, limit),
    )
    rows = [stored_event(row) for row in txn.fetchall()]
    page = _read(txn, room, rows)
    version = room_version(room.version)
    findings = [each for row in rows for each in _check(room, version, row, page)]
    if len(rows) == limit:
        last = rows[-1]
        return CheckedPage(
            findings, limit, (outliers, last.event_no if outliers else last.stream_id or 0)
        )
    return CheckedPage(findings, len(rows), None if outliers else (True, 0))


def _read(txn: Transaction, room: RoomRow, rows: Sequence[StoredEvent]) -> _Page:
    numbers = [row.event_no for row in rows]
    txn.execute(
        "SELECT event_no, checksum, raw FROM synrepl._room_event_json"
        " WHERE event_no = ANY (%s::bigint[])",
        (numbers,),
    )
    json = {number: (stored_sum, bytes(raw)) for number, stored_sum, raw in txn.fetchall()}
    cited = {each for row in rows for each in (*row.prev_nos, *row.auth_nos)}
    cited.update(row.redacted_by for row in rows if row.redacted_by is not None)
    txn.execute(
        "SELECT event_no, event_id, room_no FROM synrepl._room_events"
        " WHERE event_no = ANY (%s::bigint[])",
        (list(cited),),
    )
    ids = {number: (event_id, room_no) for number, event_id, room_no in txn.fetchall()}
    txn.execute(
        "SELECT slot, type, state_key FROM synrepl._room_keys"
        " WHERE room_no = %s AND slot = ANY (%s::int[])",
        (room.room_no, [row.slot for row in rows if row.slot is not None]),
    )
    keys = {slot: (kind, state_key) for slot, kind, state_key in txn.fetchall()}
    missing: dict[int, set[str]] = {}
    txn.execute(
        "SELECT child_no, missing_id FROM synrepl._backward_extremities"
        " WHERE room_no = %s AND child_no = ANY (%s::bigint[])",
        (room.room_no, numbers),
    )
    for child_no, missing_id in txn.fetchall():
        missing.setdefault(child_no, set()).add(missing_id)
    return _Page(rows, json, ids, keys, missing)


def _check(
    room: RoomRow, version: RoomVersion, row: StoredEvent, page: _Page
) -> Iterator[RoomFinding]:
    def finding(problem: RoomProblem, detail: str) -> RoomFinding:
        return RoomFinding(problem, room.room_id, row.event_id, detail)

    for what, numbers in (
        ("prev event", row.prev_nos),
        ("auth event", row.auth_nos),
        ("redaction", [] if row.redacted_by is None else [row.redacted_by]),
    ):
        for number in numbers:
            if page.ids.get(number, ("", 0))[1] != room.room_no:
                detail = f"its {what} {number} is not in the room"
                yield finding(RoomProblem.DANGLING, detail)
    stored = page.json.get(row.event_no)
    if stored is None:
        yield finding(RoomProblem.MISSING_JSON, "its row has no JSON")
        return
    stored_sum, raw = stored
    if checksum(row.event_id, raw) != stored_sum:
        yield finding(RoomProblem.CORRUPT_EVENT, "its bytes do not fit their checksum")
    try:
        event = parse_event(raw, version)
    except BadEvent as error:
        yield finding(RoomProblem.CORRUPT_EVENT, str(error))
        return
    if event.event_id != row.event_id:
        yield finding(RoomProblem.CORRUPT_EVENT, f"its bytes are those of {event.event_id}")
        return
    if not _content_fits(event, row):
        yield finding(RoomProblem.WRONG_CONTENT, "its content does not fit its hash")
    for column, expected, found in _columns(room, event, row, page):
        if expected != found:
            detail = f"its {column} is {expected!r} in the JSON, and {found!r} in the row"
            yield finding(RoomProblem.WRONG_COLUMN, detail)
    for what, cited, here in _edges(event, row, page):
        if cited != here:
            detail = f"its {what} are {_list(cited)} in the JSON, and {_list(here)} in the tables"
            yield finding(RoomProblem.WRONG_EDGE, detail)


def _columns(
    room: RoomRow, event: Event, row: StoredEvent, page: _Page
) -> Iterator[tuple[str, object, object]]:
    key = None if event.state_key is None else (event.type, event.state_key)
    yield "room", room.room_id, event.room_id
    yield "type", event.type, row.type
    yield "sender", event.sender, row.sender
    yield "depth", event.depth, row.depth
    yield "origin_server_ts", event.origin_server_ts, row.origin_server_ts
    yield "state key", key, None if row.slot is None else page.keys.get(row.slot, "unknown")


def _edges(event: Event, row: StoredEvent, page: _Page) -> Iterator[tuple[str, set[str], set[str]]]:
    unknown = ("an unknown event", 0)
    auth_ids = {page.ids.get(number, unknown)[0] for number in row.auth_nos}
    yield "auth events", set(auth_dependencies(event)), auth_ids
    if not row.is_outlier:
        prev_ids = {page.ids.get(number, unknown)[0] for number in row.prev_nos}
        missing = page.missing.get(row.event_no, set())
        yield "prev events", set(event.prev_event_ids), prev_ids | missing


def _content_fits(event: Event, row: StoredEvent) -> bool:
    """Whether the content is what the server hashed, or is in the redacted form.

    An event whose content did not fit when it came is stored in that form.
    """
    hashes = event.fields.get("hashes")
    stated = hashes.get("sha256") if isinstance(hashes, dict) else None
    if isinstance(stated, str):
        try:
            if decode_base64(stated) == event.content_hash():
                return not row.flags & EventFlags.ERASED or _is_erased(event)
        except ValueError:
            pass
    return _is_redacted(event) or (bool(row.flags & EventFlags.ERASED) and _is_erased(event))


def _is_redacted(event: Event) -> bool:
    """Whether redaction would change nothing but ``unsigned``."""
    kept = {name: value for name, value in event.fields.items() if name != "unsigned"}
    return canonical_json(redact(event.fields, event.version)) == canonical_json(kept)


def _is_erased(event: Event) -> bool:
    """Whether erasure would change nothing."""
    return erased_form(event) == canonical_json(event.fields)


def _list(ids: set[str]) -> str:
    return ", ".join(sorted(ids)) or "none"

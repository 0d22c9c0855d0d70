"""Checks a stored event by itself: hash, signatures, and the columns beside its JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from unpaddedbase64 import encode_base64

from synrepl.pipeline.rooms.differences import DifferenceKind, RoomDifference
from synrepl.rooms import Event, Keys, RoomVersion, check_signatures, content_hash_matches, redact

#: Fields that a redacted event may have in addition: servers add them on the way.
_ADDED = frozenset({"unsigned", "age_ts", "outlier", "destinations"})

#: Refusals that other keys may resolve.
_NEEDS_KEYS = frozenset({"unknown-key", "expired-key"})


class StoredColumns(NamedTuple):
    """What a database has of an event beside its JSON."""

    type: str
    state_key: str | None
    sender: str | None
    depth: int
    erased: bool
    prev_event_ids: Sequence[str]


def check_event(
    event: Event, columns: StoredColumns, version: RoomVersion, keys: Keys | None
) -> Iterator[RoomDifference]:
    """The differences of one event.

    :param version: of the room
    :param keys: of servers; None: signatures are not checked
    """
    event_id = event.event_id
    if keys is not None:
        refusal = check_signatures(event, keys)
        if refusal is not None and refusal.code not in _NEEDS_KEYS:
            stored = f"{refusal.code}: {refusal.sentence}"
            yield RoomDifference(
                event_id, DifferenceKind.BAD_SIGNATURE, "signatures", stored=stored
            )
    # The JSON of an erased event is in a form of its own.
    if not columns.erased and not content_hash_matches(event) and not _is_redacted(event, version):
        hashes = event.fields.get("hashes")
        stored = str(hashes.get("sha256") if isinstance(hashes, Mapping) else hashes)
        computed = encode_base64(event.content_hash())
        yield RoomDifference(
            event_id, DifferenceKind.WRONG_HASH, "hashes", stored=stored, computed=computed
        )
    pairs = (
        ("type", columns.type, event.type),
        ("state_key", columns.state_key, event.state_key),
        ("sender", columns.sender, event.sender),
        ("depth", columns.depth, event.depth),
    )
    for name, stored_value, value in pairs:
        if stored_value != value:
            yield RoomDifference(
                event_id,
                DifferenceKind.WRONG_COLUMN,
                name,
                stored=None if stored_value is None else str(stored_value),
                computed=None if value is None else str(value),
            )


def check_edges(event: Event, stored: Collection[str]) -> Iterator[RoomDifference]:
    """The difference between the prev events of an event and those that are stored beside it."""
    computed = set(event.prev_event_ids)
    if computed != set(stored):
        yield RoomDifference(
            event.event_id,
            DifferenceKind.WRONG_EDGES,
            "prev_events",
            stored=" ".join(sorted(stored)),
            computed=" ".join(sorted(computed)),
        )


def _is_redacted(event: Event, version: RoomVersion) -> bool:
    """Whether nothing but what servers add would be removed by redacting it."""
    kept = redact(event.fields, version)
    fields = {name: value for name, value in event.fields.items() if name not in _ADDED}
    return fields == {name: value for name, value in kept.items() if name not in _ADDED}

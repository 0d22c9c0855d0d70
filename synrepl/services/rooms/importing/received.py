"""Verifies the bytes of a stored event: that it is the event of its ID, hashed and signed by its server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from unpaddedbase64 import encode_base64

from synrepl.rooms import (
    BadEvent,
    Event,
    Keys,
    RoomVersion,
    check_signatures,
    content_hash_matches,
    event_of,
    redact,
)
from synrepl.services.rooms.importing.findings import FindingKind, ImportFinding
from synrepl.storage.foreign.rooms.events import SourceEvent
from synrepl.storage.foreign.rooms.stored_event import parse_stored_event

#: Fields that a redacted event may have in addition: servers add them on the way.
_ADDED = frozenset({"unsigned", "age_ts", "outlier", "destinations"})

#: Refusals that other keys may resolve.
_NEEDS_KEYS = frozenset({"unknown-key", "expired-key"})


class VerifiedEvent(NamedTuple):
    """A stored event, and what its bytes tell.

    :ivar event: the event to import; None if its bytes cannot be trusted
    :ivar is_signed: whether its signatures were verified; None if keys are missing
    :ivar is_redacted: whether the server keeps only its redacted form
    """

    event: Event | None
    findings: list[ImportFinding]
    is_signed: bool | None = None
    is_redacted: bool = False


def verify_stored(
    stored: SourceEvent, version: RoomVersion, keys: Keys, event: Event | None = None
) -> VerifiedEvent:
    """Compute the ID and hash of a stored event again, and check its signatures.

    An event whose content hash does not match is imported in its redacted form, as the specification
    wants for events that are received. Where the server keeps only the redacted form, because the event
    was redacted or arrived so, nothing is wrong.

    :param keys: the known keys of the servers
    :param event: the event, if it was parsed before
    """
    find = partial(ImportFinding, room_id=stored.room_id, event_id=stored.event_id)
    if stored.raw is None:
        return VerifiedEvent(None, [find(FindingKind.NO_JSON)])
    if event is None:
        try:
            event = parse_stored_event(stored.raw, version)
        except BadEvent as error:
            reason = str(error)
            return VerifiedEvent(None, [find(FindingKind.BAD_JSON, theirs=reason)])
    found: list[ImportFinding] = []
    if event.event_id != stored.event_id or event.room_id != stored.room_id:
        column, theirs, ours = "event_id", stored.event_id, event.event_id
        if event.room_id != stored.room_id:
            column, theirs, ours = "room_id", stored.room_id, event.room_id
        wrong = find(FindingKind.WRONG_ID, column=column, theirs=theirs, ours=ours)
        return VerifiedEvent(None, [wrong])
    refusal = check_signatures(event, keys)
    if refusal is not None and refusal.code not in _NEEDS_KEYS:
        theirs = f"{refusal.code}: {refusal.sentence}"
        wrong = find(FindingKind.BAD_SIGNATURE, column="signatures", theirs=theirs)
        return VerifiedEvent(None, [wrong])
    is_signed = True if refusal is None else None
    is_redacted = False
    if not content_hash_matches(event):
        kept = redact(event.fields, version)
        is_redacted = _is_redacted(event, kept)
        if not is_redacted:
            stated = event.fields.get("hashes")
            theirs = str(stated.get("sha256")) if isinstance(stated, dict) else str(stated)
            ours = encode_base64(event.content_hash())
            found.append(find(FindingKind.WRONG_HASH, column="hashes", theirs=theirs, ours=ours))
            event = event_of(kept, version)
    found += _columns(stored, event)
    return VerifiedEvent(event, found, is_signed, is_redacted)


def _columns(stored: SourceEvent, event: Event) -> list[ImportFinding]:
    found: list[ImportFinding] = []
    prev_event_ids: tuple[str, ...] = event.prev_event_ids
    if len(prev_event_ids) > 1:
        prev_event_ids = tuple(sorted(set(prev_event_ids)))
    if (
        stored.type == event.type
        and stored.sender == event.sender
        and stored.depth == event.depth
        and (stored.outlier or stored.prev_event_ids == prev_event_ids)
    ):
        return found
    find = partial(ImportFinding, room_id=stored.room_id, event_id=stored.event_id)
    pairs = [
        ("type", stored.type, event.type),
        ("sender", stored.sender, event.sender),
        ("depth", str(stored.depth), str(event.depth)),
    ]
    for column, theirs, ours in pairs:
        if theirs != ours:
            found.append(find(FindingKind.WRONG_COLUMN, column=column, theirs=theirs, ours=ours))
    if not stored.outlier and stored.prev_event_ids != prev_event_ids:
        found.append(
            find(
                FindingKind.WRONG_EDGES,
                column="prev_events",
                theirs=" ".join(stored.prev_event_ids),
                ours=" ".join(prev_event_ids),
            )
        )
    return found


def _is_redacted(event: Event, kept: Mapping[str, object]) -> bool:
    """Whether nothing but what servers add would be removed by redacting it."""
    fields = {name: value for name, value in event.fields.items() if name not in _ADDED}
    return fields == {name: value for name, value in kept.items() if name not in _ADDED}

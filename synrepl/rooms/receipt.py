"""Checks 1 to 3 of an event from another server, which need no room state.

Source: https://spec.matrix.org/v1.16/server-server-api/#checks-performed-on-receipt-of-a-pdu.
Checks 4 to 6 are in :mod:`synrepl.rooms.judging`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from unpaddedbase64 import decode_base64

from synrepl.rooms.event import BadEvent, Event, event_of, parse_event
from synrepl.rooms.identifiers import BadIdentifier, check_event_id, check_room_id, check_user_id
from synrepl.rooms.redacting import redact
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.signatures import Keys, check_signatures
from synrepl.rooms.versions import RoomVersion


class ReceiptVerdict(StrEnum):
    """The outcome of checks 1 to 3."""

    ACCEPT = "accept"
    ACCEPT_REDACTED = "accept redacted"  #: the content hash does not match
    DROP = "drop"  #: to be ignored


class ReceiptResult(NamedTuple):
    """The verdict on a received event.

    :ivar event: the event to continue with, redacted if the hash does not match; None if dropped
    :ivar refusal: why it is dropped or redacted
    """

    verdict: ReceiptVerdict
    event: Event | None
    refusal: Refusal | None


def check_on_receipt(raw: bytes, version: RoomVersion, keys: Keys) -> ReceiptResult:
    """Check the format, the signatures and the content hash of an event.

    An event that is dropped because of ``unknown-key`` or ``expired-key`` may be checked again with more keys.

    For a redacted event, :attr:`Event.raw` is its canonical JSON, not ``raw``.

    :param raw: the JSON as received
    :param keys: the known keys of the servers that must have signed it
    """
    try:
        event = parse_event(raw, version)
        _check_identifiers(event)
    except (BadEvent, BadIdentifier) as error:  # check 1
        return ReceiptResult(ReceiptVerdict.DROP, None, Refusal("no-event", str(error)))
    refusal = check_signatures(event, keys)  # check 2
    if refusal is not None:
        return ReceiptResult(ReceiptVerdict.DROP, None, refusal)
    if content_hash_matches(event):  # check 3
        return ReceiptResult(ReceiptVerdict.ACCEPT, event, None)
    kept = event_of(redact(event.fields, version), version)
    refusal = Refusal("wrong-hash", "its content is not what its server hashed")
    return ReceiptResult(ReceiptVerdict.ACCEPT_REDACTED, kept, refusal)


def content_hash_matches(event: Event) -> bool:
    """Whether the content hash of an event equals the one in ``hashes``."""
    hashes = event.fields.get("hashes")
    stated = hashes.get("sha256") if isinstance(hashes, dict) else None
    if not isinstance(stated, str):
        return False
    try:
        return decode_base64(stated) == event.content_hash()
    except ValueError:
        return False


def _check_identifiers(event: Event) -> None:
    check_user_id(event.sender)
    check_room_id(event.room_id, event.version)
    check_event_id(event.event_id, event.version)

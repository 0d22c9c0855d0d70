"""The first three checks of an event that another server sent, which need no room.

Source: https://spec.matrix.org/v1.16/server-server-api/#checks-performed-on-receipt-of-a-pdu,
checks 1 to 3; the others need the room's state.
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
    """What becomes of an event."""

    ACCEPT = "accept"
    ACCEPT_REDACTED = "accept redacted"  #: its content is not what its server hashed
    DROP = "drop"  #: as if it had never come


class ReceiptResult(NamedTuple):
    """The verdict on an event.

    :ivar event: what to go on with, its redacted form if only that is accepted; None if dropped
    :ivar refusal: why it is dropped or redacted
    """

    verdict: ReceiptVerdict
    event: Event | None
    refusal: Refusal | None


def check_on_receipt(raw: bytes, version: RoomVersion, keys: Keys) -> ReceiptResult:
    """Judge an event by itself, its signatures and its content hash.

    One that is dropped because of ``unknown-key`` or ``expired-key`` may be judged again with more keys.

    Of a redacted event, :attr:`Event.raw` is canonical JSON; whoever wants to keep what came has it.

    :param raw: JSON as it came
    :param keys: those of the servers that must have signed it, as far as they are known
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
    """Whether its content hash is what its ``hashes`` say."""
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

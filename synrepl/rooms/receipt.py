"""Checks 1 to 3 of an event from another server, which need no room state.

Source: https://spec.matrix.org/v1.16/server-server-api/#checks-performed-on-receipt-of-a-pdu.
Checks 4 to 6 are in :mod:`synrepl.rooms.judging`.
"""

from __future__ import annotations

from binascii import b2a_base64
from enum import StrEnum
from typing import NamedTuple

from unpaddedbase64 import decode_base64

from synrepl.rooms.event import BadEvent, Event, event_of, parse_event
from synrepl.rooms.identifiers import BadIdentifier, check_event_id, check_room_id, check_user_id
from synrepl.rooms.redacting import redact
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.signatures import Keys, check_signatures
from synrepl.rooms.versions import RoomVersion

#: Refusals that other keys may resolve.
_NEEDS_KEYS = frozenset({"unknown-key", "expired-key"})


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

    @property
    def needs_keys(self) -> bool:
        """Whether the verdict may be another one with more keys."""
        return self.refusal is not None and self.refusal.code in _NEEDS_KEYS


def check_on_receipt(raw: bytes, version: RoomVersion, keys: Keys) -> ReceiptResult:
    """Check the format, the signatures and the content hash of an event.

    An event that is dropped may be checked again with more keys if the result :attr:`~ReceiptResult.needs_keys`.

    For a redacted event, :attr:`Event.raw` is its canonical JSON, not ``raw``.

    :param raw: the JSON as received
    :param keys: the known keys of the servers that must have signed it
    """
    try:
        event = parse_received_event(raw, version)  # check 1
    except (BadEvent, BadIdentifier) as error:
        return dropped_on_receipt(error)
    return check_received_event(event, keys)


def parse_received_event(raw: bytes, version: RoomVersion) -> Event:
    """Check 1 of an event.

    :raises BadEvent: :raises BadIdentifier:
    """
    event = parse_event(raw, version)
    check_user_id(event.sender)
    check_room_id(event.room_id, event.version)
    check_event_id(event.event_id, event.version)
    return event


def dropped_on_receipt(error: BadEvent | BadIdentifier) -> ReceiptResult:
    """The result of checks of which the first has failed."""
    return ReceiptResult(ReceiptVerdict.DROP, None, Refusal("no-event", str(error)))


def check_received_event(event: Event, keys: Keys) -> ReceiptResult:
    """Checks 2 and 3 of an event that has passed check 1; see :func:`check_on_receipt`."""
    refusal = check_signatures(event, keys)  # check 2
    if refusal is not None:
        return ReceiptResult(ReceiptVerdict.DROP, None, refusal)
    if content_hash_matches(event):  # check 3
        return ReceiptResult(ReceiptVerdict.ACCEPT, event, None)
    kept = event_of(redact(event.fields, event.version), event.version)
    refusal = Refusal("wrong-hash", "its content is not what its server hashed")
    return ReceiptResult(ReceiptVerdict.ACCEPT_REDACTED, kept, refusal)


def content_hash_matches(event: Event) -> bool:
    """Whether the content hash of an event equals the one in ``hashes``."""
    hashes = event.fields.get("hashes")
    stated = hashes.get("sha256") if isinstance(hashes, dict) else None
    if not isinstance(stated, str):
        return False
    made = event.content_hash()
    if stated == b2a_base64(made).decode().rstrip("=\n"):
        return True
    try:
        return decode_base64(stated) == made  # with other letters, or padding
    except ValueError:
        return False

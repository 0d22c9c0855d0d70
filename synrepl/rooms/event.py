"""A PDU, the federation format of an event: the received JSON, and its parsed fields.

Sources: the section "Event format" of https://spec.matrix.org/v1.16/rooms/v1/, v3 and v12, and
https://spec.matrix.org/v1.16/client-server-api/#size-limits.

How unusual JSON is treated:

- a duplicate key: the last one counts, as in Synapse; :attr:`Event.raw` keeps both
- ``1.0``, ``1e3``, ``-0`` and integers beyond ±(2^53 − 1): refused where the version has
  ``strict_json``. Otherwise ``1.0`` and ``1e3`` stay floats (canonical JSON has ``1000.0``, as in
  Synapse), ``-0`` is 0, and integers stay exact
- a number too large for a float (``1e400``), an integer of thousands of digits: refused
- a lone surrogate, bytes that are not UTF-8: refused, because they have no canonical JSON
- escaped NUL and other control characters: kept like any other character
- more than :data:`~synrepl.core.jsons.MAX_EXACT_DEPTH` levels of lists and objects: refused
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Never

import msgspec

from synrepl.core.errors import InputError
from synrepl.core.jsons import (
    BadJson,
    canonical,
    canonical_of_decoded,
    decode_exactly,
    has_negative_zero,
)
from synrepl.rooms.event_types import CREATE, REDACTION
from synrepl.rooms.hashes import content_hash_of_decoded, event_id_of
from synrepl.rooms.identifiers import MAX_ID_BYTES
from synrepl.rooms.redacting import signed_part
from synrepl.rooms.versions import EventIds, RoomVersion

#: Maximum size of an event's canonical JSON, in bytes.
MAX_EVENT_BYTES = 65_536

#: Maximum number of prev events and of auth events.
MAX_PREV_EVENTS = 20
MAX_AUTH_EVENTS = 10

#: Depth and time are stored in 64-bit columns; only versions without strict JSON allow larger numbers.
_MAX_NUMBER = 2**63 - 1

#: Text of at most this many characters never exceeds :data:`MAX_ID_BYTES` in UTF-8.
_SURELY_SHORT = MAX_ID_BYTES // 4

_NOT_STRICT = "a number in it is no integer within ±(2^53 − 1)"

#: Looking up a member of an enumeration is slow.
_GIVEN = EventIds.GIVEN


class BadEvent(InputError):
    """this is no event of room version {version}: {reason}"""


class Event(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One event. Its contents must not be mutated.

    :ivar raw: the JSON as received
    :ivar fields: the decoded JSON
    :ivar state_key: None for a message event
    :ivar prev_event_ids: the IDs in ``prev_events``
    :ivar auth_event_ids: the IDs in ``auth_events``, in that order
    :ivar depth: as stated by the sender's server; unreliable
    :ivar origin_server_ts: milliseconds since 1970, as stated by the sender's server
    """

    raw: bytes
    version: RoomVersion
    fields: dict[str, Any]
    event_id: str
    room_id: str
    type: str
    sender: str
    state_key: str | None
    content: dict[str, Any]
    depth: int
    origin_server_ts: int
    prev_event_ids: tuple[str, ...]
    auth_event_ids: tuple[str, ...]

    @property
    def is_create(self) -> bool:
        """Whether it is the room's ``m.room.create``."""
        return self.type == CREATE and self.state_key == ""

    @property
    def membership(self) -> object:
        """``membership`` of the content, of whatever type."""
        return self.content.get("membership")

    @property
    def redacts(self) -> str | None:
        """The target event ID of an ``m.room.redaction``; None for other types."""
        if self.type != REDACTION:
            return None
        where = self.content if self.version.redacts_in_content else self.fields
        target = where.get("redacts")
        return target if isinstance(target, str) else None

    @property
    def signatures(self) -> dict[str, Any]:
        """The content of ``signatures``, by server, unverified."""
        signatures = self.fields.get("signatures")
        return signatures if isinstance(signatures, dict) else {}

    def content_hash(self) -> bytes:
        """The SHA-256 that ``hashes`` should contain."""
        return content_hash_of_decoded(self.fields)

    def signed_bytes(self) -> bytes:
        """The bytes that servers sign: canonical JSON of the redacted event without ``signatures``."""
        return canonical_of_decoded(signed_part(self.fields, self.version))


def parse_event(raw: bytes, version: RoomVersion) -> Event:
    """Parse an event in federation format.

    :raises BadEvent: a required field is missing, a field has the wrong type, or a limit is exceeded
    """
    try:
        fields, size = decode_exactly(raw, "an event")
    except BadJson as error:
        raise BadEvent(version=version.name, reason=error.facts["reason"]) from None
    if type(fields) is not dict:
        _refuse(version, "it is no object")
    if size is None:
        size = _lenient_size(fields, version)
    elif size != len(raw) and version.strict_json and has_negative_zero(raw):
        # Where the sizes are equal, the JSON was canonical but for the order of keys.
        _refuse(version, _NOT_STRICT)
    if size > MAX_EVENT_BYTES:
        _refuse(version, f"it has {size} bytes, more than {MAX_EVENT_BYTES}")
    try:
        kind, sender, content = fields["type"], fields["sender"], fields["content"]
        depth, origin_server_ts = fields["depth"], fields["origin_server_ts"]
        prev_events, auth_events = fields["prev_events"], fields["auth_events"]
    except KeyError as missing:
        _refuse(version, f"it has no {missing}")
    state_key = fields.get("state_key")
    if type(kind) is not str or type(sender) is not str:
        _refuse(version, "type or sender is no text")
    if type(content) is not dict:
        _refuse(version, "content is no object")
    if state_key is not None and type(state_key) is not str:
        _refuse(version, "state_key is no text")
    if type(depth) is not int or type(origin_server_ts) is not int:
        _refuse(version, "depth or origin_server_ts is no integer")
    if depth < 0:
        _refuse(version, "depth is below 0")
    event_id: Any
    room_id: Any
    if version.event_ids is _GIVEN:
        event_id = fields.get("event_id")
        prev_events, auth_events = _firsts(prev_events), _firsts(auth_events)
    else:
        event_id = event_id_of(canonical_of_decoded(signed_part(fields, version)), version)
    if kind == CREATE and state_key == "" and version.room_id_is_create_hash:
        room_id = "!" + event_id[1:]
    else:
        room_id = fields.get("room_id")
    if type(room_id) is not str or type(event_id) is not str:
        _refuse(version, "room_id or event_id is no text")
    if (
        len(kind) > _SURELY_SHORT
        or len(sender) > _SURELY_SHORT
        or len(room_id) > _SURELY_SHORT
        or len(event_id) > _SURELY_SHORT
        or (state_key is not None and len(state_key) > _SURELY_SHORT)
    ):
        _check_lengths((kind, sender, room_id, event_id, state_key or ""), version)
    if type(prev_events) is not list or type(auth_events) is not list:
        _refuse(version, "prev_events or auth_events is no list")
    if len(prev_events) > MAX_PREV_EVENTS or len(auth_events) > MAX_AUTH_EVENTS:
        most = f"{MAX_PREV_EVENTS} prev_events or {MAX_AUTH_EVENTS} auth_events"
        _refuse(version, f"it has more than {most}")
    try:
        # The quickest way to check that all are text, and short.
        references = prev_events + auth_events
        together = "".join(references)
    except TypeError:
        _refuse(version, "prev_events or auth_events is no list of event IDs")
    if (len(together) > MAX_ID_BYTES or not together.isascii()) and (
        max(map(len, references)) > _SURELY_SHORT
    ):
        _check_lengths(references, version)
    return Event(
        raw,
        version,
        fields,
        event_id,
        room_id,
        kind,
        sender,
        state_key,
        content,
        depth,
        origin_server_ts,
        tuple(prev_events),
        tuple(auth_events),
    )


def event_of(fields: dict[str, Any], version: RoomVersion) -> Event:
    """Make an event of decoded JSON; :attr:`Event.raw` becomes its canonical JSON.

    :raises BadEvent: see :func:`parse_event`
    """
    try:
        raw = canonical(fields)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadEvent(version=version.name, reason=str(error)) from None
    return parse_event(raw, version)


def _lenient_size(fields: dict[str, Any], version: RoomVersion) -> int:
    """The size of its canonical JSON in bytes, with numbers that only some versions allow."""
    if version.strict_json:
        _refuse(version, _NOT_STRICT)
    for name in ("depth", "origin_server_ts"):
        number = fields.get(name)
        if isinstance(number, int) and abs(number) > _MAX_NUMBER:
            _refuse(version, f"{name} has more than 64 bits")
    try:
        return len(canonical_of_decoded(fields))
    except ValueError as error:
        _refuse(version, str(error))


def _firsts(references: object) -> object:
    """The IDs of (event ID, hash) pairs. Anything malformed stays, or becomes None, to be refused later."""
    if not isinstance(references, list):
        return references
    return [pair[0] if type(pair) is list and pair else None for pair in references]


def _check_lengths(texts: Iterable[str], version: RoomVersion) -> None:
    for text in texts:
        if len(text.encode()) > MAX_ID_BYTES:
            _refuse(version, f"its {text[:40]!r}… has more than {MAX_ID_BYTES} bytes")


def _refuse(version: RoomVersion, reason: str) -> Never:
    raise BadEvent(version=version.name, reason=reason)

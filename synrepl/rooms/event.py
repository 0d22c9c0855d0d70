"""An event as it travels between servers (PDU): the JSON that came, and a view over it.

Sources: the section "Event format" of https://spec.matrix.org/v1.16/rooms/v1/, v3 and v12, and
https://spec.matrix.org/v1.16/client-server-api/#size-limits.

What is odd in JSON, and what becomes of it:

- a key that occurs twice: the last one counts, as for the reference; :attr:`Event.raw` keeps both
- ``1.0``, ``1e3``, ``-0`` and integers beyond ±(2^53 − 1): refused where the version has
  ``strict_json``. Else ``1.0`` and ``1e3`` stay fractional (canonical JSON has ``1000.0``, as the
  reference's), ``-0`` is 0, integers stay exact
- a number too large for a float (``1e400``), an integer of thousands of digits: refused
- half a surrogate pair, bytes that are no UTF-8: refused, for there is no canonical JSON of them
- NUL and other control characters, escaped: kept like any other
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

#: Bytes of an event's canonical JSON, at most.
MAX_EVENT_BYTES = 65_536

#: How many events one may follow, and cite, at most.
MAX_PREV_EVENTS = 20
MAX_AUTH_EVENTS = 10

#: Depth and time are kept in columns of 64 bits; only versions without strict JSON have larger numbers.
_MAX_NUMBER = 2**63 - 1

#: Text of so many characters is never longer than :data:`MAX_ID_BYTES`.
_SURELY_SHORT = MAX_ID_BYTES // 4

_NOT_STRICT = "a number in it is no integer within ±(2^53 − 1)"

#: Looking up a member of an enumeration is slow.
_GIVEN = EventIds.GIVEN


class BadEvent(InputError):
    """this is no event of room version {version}: {reason}"""


class Event(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One event. What is in it must not be changed.

    :ivar raw: the JSON as it came
    :ivar fields: the same, decoded
    :ivar state_key: None when it is no state event
    :ivar prev_event_ids: the events that it follows
    :ivar auth_event_ids: the events that it cites, in its own order
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
        """Whether it made its room."""
        return self.type == CREATE and self.state_key == ""

    @property
    def membership(self) -> object:
        """Of an ``m.room.member``, what its content says, text or not."""
        return self.content.get("membership")

    @property
    def redacts(self) -> str | None:
        """Of an ``m.room.redaction``, the ID of the event that it is about; None of any other."""
        if self.type != REDACTION:
            return None
        where = self.content if self.version.redacts_in_content else self.fields
        target = where.get("redacts")
        return target if isinstance(target, str) else None

    @property
    def signatures(self) -> dict[str, Any]:
        """By server, what it says are signatures; nothing in it is checked."""
        signatures = self.fields.get("signatures")
        return signatures if isinstance(signatures, dict) else {}

    def content_hash(self) -> bytes:
        """SHA-256 as it should stand in its ``hashes``."""
        return content_hash_of_decoded(self.fields)

    def signed_bytes(self) -> bytes:
        """What servers sign of it: canonical JSON of its redacted form without ``signatures``."""
        return canonical_of_decoded(signed_part(self.fields, self.version))


def parse_event(raw: bytes, version: RoomVersion) -> Event:
    """Read an event in federation format.

    :raises BadEvent: it lacks something that every event has, something is of the wrong type, or
        too large
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
        # Where the sizes are the same, nothing was written in another way than canonical JSON's.
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
        # The quickest way to see whether all is text, and short.
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
    """The same of an event that is decoded already; its JSON is made canonical.

    :raises BadEvent: see :func:`parse_event`
    """
    try:
        raw = canonical(fields)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadEvent(version=version.name, reason=str(error)) from None
    return parse_event(raw, version)


def _lenient_size(fields: dict[str, Any], version: RoomVersion) -> int:
    """How many bytes its canonical JSON has, with numbers that only some versions allow."""
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
    """Of pairs of an event ID and a hash, the IDs; anything else as it is, or None, to be refused."""
    if not isinstance(references, list):
        return references
    return [pair[0] if type(pair) is list and pair else None for pair in references]


def _check_lengths(texts: Iterable[str], version: RoomVersion) -> None:
    for text in texts:
        if len(text.encode()) > MAX_ID_BYTES:
            _refuse(version, f"its {text[:40]!r}… has more than {MAX_ID_BYTES} bytes")


def _refuse(version: RoomVersion, reason: str) -> Never:
    raise BadEvent(version=version.name, reason=reason)

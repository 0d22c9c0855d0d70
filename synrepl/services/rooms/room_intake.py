"""Persists the events in the bodies of HTTP requests.

Three forms of body are equivalent::

    {"version": "10", "received": "live", "events": [event, event, …]}
    [event, event, …]                                   version and received are parameters of the URL
    event                                               one per line; likewise
    event

Events are in federation format, and are stored byte for byte as they stand in the body. ``received`` is ``live`` for
events sent as they happen, ``history`` for older ones, and ``outlier`` for those that come only because others cite
them. The version may be left out for rooms that are stored, and where the body has the ``m.room.create``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import NamedTuple, TypeVar

import msgspec

from synrepl.core.errors import InputError, SynreplError, Unavailable
from synrepl.core.slices import Slices
from synrepl.rooms import BadEvent, Event, UnknownRoomVersion, parse_event, room_version
from synrepl.services.rooms.persister import IncomingBatch, RoomPersister
from synrepl.services.rooms.room_writers import PlacedRooms, RoomWriters
from synrepl.storage.rooms.tables.incoming import IncomingEvent, PersistedEvent

_Body = TypeVar("_Body")

#: A line, from its first character that is not white space.
_LINE_OF_BODY = re.compile(rb"\S[^\n]*")

#: Units of :class:`.Slices` for an event: it takes some 40 µs to parse.
_COST = 4

#: Maximum number of events in one request.
MAX_POSTED = 10_000


class BadEventsBody(InputError):
    """events cannot be taken from this body, at {path}: {reason}; send an object with 'events', an array of events, or an event per line"""


class PostedEventRefused(InputError):
    """the event at {path} cannot be taken: {reason}; nothing was written"""


class PostedVersionNeeded(InputError):
    """the version of room {room_id} is not known: it is not stored, and its m.room.create is not in the body; give 'version'"""


class TooManyPosted(InputError):
    """the request has more than {limit} events; send several requests"""


class NoRoomWriter(Unavailable):
    """this process does not write the streams of rooms, although rooms are assigned to it; send events to another one of {writers}, or name it in stream_writers of events, backfill and caches"""


class Received(StrEnum):
    """How events were received."""

    LIVE = "live"
    HISTORY = "history"
    OUTLIER = "outlier"


class PostedEvents(NamedTuple):
    """The outcomes of the events of a request.

    :ivar events: the events of the body, in that order
    :ivar released: events that had waited for them
    """

    events: Sequence[PersistedEvent]
    released: Sequence[PersistedEvent]

    def to_json(self) -> dict[str, object]:
        """``{"events": […], "released": […]}``."""
        return {
            "events": [_outcome(each) for each in self.events],
            "released": [_outcome(each) for each in self.released],
        }


class _EventsBody(msgspec.Struct, forbid_unknown_fields=True):
    """The form with an object."""

    events: list[msgspec.Raw]
    version: str | None = None
    received: str | None = None


class _Least(msgspec.Struct, gc=False):
    """What every event has."""

    type: msgspec.Raw
    sender: msgspec.Raw
    content: msgspec.Raw
    depth: msgspec.Raw
    origin_server_ts: msgspec.Raw
    prev_events: msgspec.Raw
    auth_events: msgspec.Raw


class _LeastBody(msgspec.Struct):
    """The form with an object, with what every event has."""

    events: list[_Least]


class _Head(msgspec.Struct):
    """What is read of an event before its room version is known."""

    type: str | None = None
    room_id: str | None = None
    state_key: str | None = None
    content: msgspec.Raw = msgspec.Raw()


class _Version(msgspec.Struct):
    """What is read of the content of an ``m.room.create``."""

    room_version: str = "1"


class _Posted(NamedTuple):
    """A body in one of its forms.

    :ivar paths: of the events, for errors
    """

    events: Sequence[bytes]
    paths: Sequence[str]
    version: str | None
    received: Received


class RoomIntake:
    """Parses and persists the events of requests, as far as their rooms are assigned to this process.

    Checks 1 to 3 (format, signatures, hashes) are up to the sender, but for the format. Events of one room are
    persisted in batches, each in one transaction. Nothing is written unless everything in the body is an event of
    a room of this process, and the queue of each of these rooms has a place for its events.

    :param persister: None in a process that persists no room
    :param writers: says which rooms are assigned to which process
    :param instance: this process
    :param slices: the turns in which events are parsed
    :ivar outcomes: number of events by outcome, and of refused requests by the name of the error
    """

    def __init__(
        self,
        persister: RoomPersister | None,
        writers: RoomWriters,
        instance: str,
        slices: Slices,
    ) -> None:
        self._persister = persister
        self._writers = writers
        self._instance = instance
        self._slices = slices
        self.outcomes: Counter[str] = Counter()

    @property
    def refused_by_limits(self) -> Mapping[str, int]:
        """How often a limit of a room refused something, by the limit's name; empty without a persister."""
        return {} if self._persister is None else self._persister.refused

    @property
    def queued(self) -> Mapping[str, int]:
        """The number of batches that wait to be persisted, and the bytes of their events."""
        if self._persister is None:
            return {"batches": 0, "bytes": 0}
        queues = self._persister.queues
        return {"batches": queues.batches, "bytes": queues.size}

    async def persist(
        self, body: bytes, version: str | None = None, received: str | None = None
    ) -> PostedEvents:
        """Persist the events of a body; returns once they are committed.

        Sending a body again is harmless: an event that is here stays as it is.

        :param version: of the rooms, unless the body names it
        :param received: how they were received, unless the body says so
        :raises BadEventsBody: :raises PostedEventRefused: :raises PostedVersionNeeded:
        :raises TooManyPosted: :raises UnknownRoomVersion:
        :raises OtherRoomWriter: a room is assigned to another instance
        :raises SynreplError: the errors of :meth:`.RoomPersister.persist_rooms`
        """
        try:
            posted = split_body(body, version, received)
            done = await self._persist(posted)
        except SynreplError as error:
            self.outcomes[type(error).__name__] += 1
            raise
        self.outcomes.update(each.outcome.value for each in done.events)
        return done

    async def _persist(self, posted: _Posted) -> PostedEvents:
        heads = [_head(raw, path) for raw, path in zip(posted.events, posted.paths, strict=True)]
        created = _created(posted, heads)
        named = {head.room_id for head in heads if head.room_id is not None}
        placed = await self._writers.place(named | created.keys())
        versions = {**placed.versions, **created}
        events: list[Event] = []
        for raw, path, head in zip(posted.events, posted.paths, heads, strict=True):
            await self._slices.step(_COST)
            name = posted.version or _version_of(head, versions, path)
            events.append(_parsed(raw, path, name))
        by_room: dict[str, list[int]] = {}
        for place, event in enumerate(events):
            by_room.setdefault(event.room_id, []).append(place)
        persister = self._persister_of(by_room, placed)
        batches = [
            IncomingBatch(
                room_id,
                events[places[0]].version.name,
                [_incoming(events[place], posted.received) for place in places],
            )
            for room_id, places in by_room.items()
        ]
        done, judged = await persister.persist_rooms(batches)
        outcomes: dict[int, PersistedEvent] = {}
        for places, part in zip(by_room.values(), done, strict=True):
            outcomes.update(zip(places, part, strict=True))
        given = {each.event_id for each in outcomes.values()}
        released = [each for each in judged if each.event_id not in given]
        return PostedEvents([outcomes[place] for place in range(len(events))], released)

    def _persister_of(self, room_ids: Iterable[str], placed: PlacedRooms) -> RoomPersister:
        """The persister, if the rooms are assigned to this process.

        :raises OtherRoomWriter: :raises NoRoomWriter:
        """
        for room_id in room_ids:
            placed.assignment.check(room_id, self._instance)
        if self._persister is None:
            raise NoRoomWriter(writers=", ".join(placed.assignment.writers))
        return self._persister


def split_body(body: bytes, version: str | None, received: str | None) -> _Posted:
    """The events of a body in any of its forms.

    :raises BadEventsBody: :raises TooManyPosted:
    """
    first = _LINE_OF_BODY.search(body)
    if first is None:
        raise BadEventsBody(path="$", reason="it has no event")
    events: Sequence[bytes]
    if first[0][:1] == b"[":
        _check_number(_LEAST_ARRAY, body)
        events = [bytes(each) for each in _decoded(_ARRAY, body)]
        paths = [f"$[{place}]" for place in range(len(events))]
    elif first[0][:1] == b"{" and not _is_event_line(first[0]):
        _check_number(_LEAST_OBJECT, body)
        given = _decoded(_OBJECT, body)
        version, received = given.version or version, given.received or received
        events = [bytes(each) for each in given.events]
        paths = [f"$.events[{place}]" for place in range(len(events))]
    else:
        lines = dict(islice(_lines(body), MAX_POSTED + 1))
        events = list(lines.values())
        paths = [f"line {place}" for place in lines]
    if not events:
        raise BadEventsBody(path="$", reason="it has no event")
    if len(events) > MAX_POSTED:
        raise TooManyPosted(limit=MAX_POSTED)
    try:
        how = Received(received or Received.LIVE)
    except ValueError:
        kinds = ", ".join(Received)
        reason = f"'received' is {received!r:.40}, not one of {kinds}"
        raise BadEventsBody(path="$", reason=reason) from None
    return _Posted(events, paths, version, how)


def _lines(body: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines of a body that are not blank, with their numbers."""
    number, at = 1, 0
    for line in _LINE_OF_BODY.finditer(body):
        number += body.count(b"\n", at, line.start())
        at = line.start()
        yield number, line[0]


def _check_number(decoder: msgspec.json.Decoder[object], body: bytes) -> None:
    """Check a body that may have many more elements than events can be.

    Each would take more memory than its text. What every event has is long enough that a body cannot have
    very many of them, and decoding ends with the first element that lacks something.

    :raises PostedEventRefused: an element is no event
    """
    if body.count(b",") < MAX_POSTED:
        return
    try:
        decoder.decode(body)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `")
        if "[" in path:
            raise PostedEventRefused(path=path.removesuffix("`"), reason=reason) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # is reported by the decoder of the events


def _is_event_line(line: bytes) -> bool:
    """Whether a line is a JSON object of its own that has no events inside."""
    try:
        return not isinstance(_LINE.decode(line).events, msgspec.Raw)
    except RecursionError:
        return True  # it is reported as an event that is nested too deeply
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


class _Line(msgspec.Struct):
    """The only member that tells an object with events from an event."""

    events: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def _decoded(decoder: msgspec.json.Decoder[_Body], body: bytes) -> _Body:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `")
        raise BadEventsBody(path=path.removesuffix("`") or "$", reason=reason) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = (str(error) or type(error).__name__)[:200]
        raise BadEventsBody(path="$", reason=reason) from None


def _head(raw: bytes, path: str) -> _Head:
    try:
        return _HEAD.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = (str(error) or type(error).__name__)[:200]
        raise PostedEventRefused(path=path, reason=reason) from None


def _parsed(raw: bytes, path: str, version: str) -> Event:
    try:
        return parse_event(raw, room_version(version))
    except BadEvent as error:
        raise PostedEventRefused(path=path, reason=error) from None


def _created(posted: _Posted, heads: Iterable[_Head]) -> dict[str, str]:
    """The versions of the rooms that begin in a body."""
    versions: dict[str, str] = {}
    for raw, path, head in zip(posted.events, posted.paths, heads, strict=True):
        if (head.type, head.state_key) == ("m.room.create", ""):
            name = posted.version or _version_in(head, path)
            try:
                versions[parse_event(raw, room_version(name)).room_id] = name
            except (BadEvent, UnknownRoomVersion) as error:
                raise PostedEventRefused(path=path, reason=error) from None
    return versions


def _version_in(create: _Head, path: str) -> str:
    try:
        return _VERSION.decode(create.content).room_version
    except msgspec.DecodeError as error:
        raise PostedEventRefused(path=path, reason=error) from None


def _version_of(head: _Head, versions: Mapping[str, str], path: str) -> str:
    if (head.type, head.state_key) == ("m.room.create", ""):
        return _version_in(head, path)
    if head.room_id is None:
        raise PostedEventRefused(path=path, reason="it has no room_id")
    if head.room_id not in versions:
        raise PostedVersionNeeded(room_id=head.room_id[:255])
    return versions[head.room_id]


def _incoming(event: Event, received: Received) -> IncomingEvent:
    is_history = received is Received.HISTORY
    return IncomingEvent(event, received is Received.LIVE, is_history, received is Received.OUTLIER)


def _outcome(event: PersistedEvent) -> dict[str, object]:
    """The outcome of an event as JSON, without empty members."""
    shown: dict[str, object] = {"event_id": event.event_id, "outcome": event.outcome.value}
    if event.stream_id is not None:
        shown |= {"stream_id": event.stream_id, "topological": event.topological}
    if event.refusal is not None:
        shown |= {"code": event.refusal.code, "reason": event.refusal.sentence}
    if event.missing:
        shown["missing"] = list(event.missing)
    if event.error is not None:
        shown |= {"error": type(event.error).__name__, "reason": str(event.error)}
    return shown


_HEAD = msgspec.json.Decoder(_Head)
_VERSION = msgspec.json.Decoder(_Version)
_LINE = msgspec.json.Decoder(_Line)
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT = msgspec.json.Decoder(_EventsBody)
_LEAST_ARRAY: msgspec.json.Decoder[object] = msgspec.json.Decoder(list[_Least])
_LEAST_OBJECT: msgspec.json.Decoder[object] = msgspec.json.Decoder(_LeastBody)

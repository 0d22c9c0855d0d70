"""The errors of sending that the process which asked another one to send gets as they are."""

from __future__ import annotations

from synrepl.core.errors import SynreplError
from synrepl.rooms import BadEvent, NoCanonicalJson, OtherRoom, UnknownEvents
from synrepl.services.rooms.assignment import OtherRoomWriter
from synrepl.services.rooms.room_intake import NoRoomWriter
from synrepl.services.rooms.room_queues import RoomQueueFull
from synrepl.storage.rooms.persisting.limits import ResolutionTooLarge, TooManyExtremities
from synrepl.storage.rooms.persisting.send_run import EventNotAllowed, RedactedEventUnknown
from synrepl.storage.rooms.tables.incoming import NotStorable
from synrepl.storage.rooms.tables.numbers import OtherRoomVersion, UnknownRoom

FORWARDED_ERRORS: tuple[type[SynreplError], ...] = (
    BadEvent,
    EventNotAllowed,
    NoCanonicalJson,
    NoRoomWriter,
    NotStorable,
    OtherRoom,
    OtherRoomVersion,
    OtherRoomWriter,
    RedactedEventUnknown,
    ResolutionTooLarge,
    RoomQueueFull,
    TooManyExtremities,
    UnknownEvents,
    UnknownRoom,
)

"""How errors of services are answered to Matrix clients.

Errors that are not listed are answered by their family: an ``InputError`` as ``M_INVALID_PARAM``, a ``Refused`` as
``M_FORBIDDEN``, an ``Unavailable`` with status 503.
"""

from __future__ import annotations

from synrepl.adapters.client_api.errors import ErrorTable, MatrixCode
from synrepl.daemon.client_api.absent import NothingFound
from synrepl.rooms import BadEvent, BadIdentifier, NoCanonicalJson, UnknownRoomVersion
from synrepl.services.clients.identity import UnsupportedLogin
from synrepl.services.clients.known_users import BadLogin
from synrepl.services.federation.joining.errors import (
    JoinGoesOn,
    NoServerToAsk,
    RefusedByServers,
    RoomNotAtServers,
    RoomVersionNotSpoken,
    ServersDidNotHelp,
    TooManyJoins,
)
from synrepl.services.rooms.client_data.account_data import (
    AccountDataTooLarge,
    ControlledByServer,
    NoAccountData,
    TooManyTags,
)
from synrepl.services.rooms.client_data.stream_writers import StreamNotServed
from synrepl.services.rooms.client_data.to_device import DeviceMessageTooLarge, TooManyRecipients
from synrepl.services.rooms.sliding.sliding_pos import UnknownPosition
from synrepl.services.rooms.sync.stored_filters import UnknownFilter
from synrepl.services.rooms.timelines.updates import DamagedRoom, EventNotVisible, HasNoEntry
from synrepl.storage.clients.account_data import TooMuchAccountData
from synrepl.storage.clients.receipts import EventNotInRoom
from synrepl.storage.database import CommitUnknown
from synrepl.storage.rooms.partial.full_joins import JoinInterrupted, JoinUnderWay
from synrepl.storage.rooms.persisting.limits import ResolutionTooLarge, TooManyExtremities
from synrepl.storage.rooms.persisting.send_run import RedactedEventUnknown
from synrepl.storage.rooms.reading.client_rooms import StillInRoom
from synrepl.storage.rooms.reading.partial_states import StateNotKnownYet
from synrepl.storage.rooms.tables.aliases import AliasInUse, UnknownAlias
from synrepl.storage.rooms.tables.incoming import NotStorable
from synrepl.storage.rooms.tables.numbers import UnknownRoom

CLIENT_API_ERRORS: ErrorTable = {
    NothingFound: MatrixCode(404, "M_NOT_FOUND"),
    BadLogin: MatrixCode(400, "M_BAD_JSON"),
    UnsupportedLogin: MatrixCode(400, "M_UNKNOWN"),
    UnknownRoom: MatrixCode(404, "M_NOT_FOUND"),
    EventNotVisible: MatrixCode(404, "M_NOT_FOUND"),
    HasNoEntry: MatrixCode(404, "M_NOT_FOUND"),
    UnknownFilter: MatrixCode(404, "M_NOT_FOUND"),
    UnknownPosition: MatrixCode(400, "M_UNKNOWN_POS"),
    NoAccountData: MatrixCode(404, "M_NOT_FOUND"),
    EventNotInRoom: MatrixCode(404, "M_NOT_FOUND"),
    ControlledByServer: MatrixCode(405, "M_BAD_JSON"),
    AccountDataTooLarge: MatrixCode(413, "M_TOO_LARGE"),
    TooMuchAccountData: MatrixCode(413, "M_TOO_LARGE"),
    TooManyTags: MatrixCode(413, "M_TOO_LARGE"),
    DeviceMessageTooLarge: MatrixCode(413, "M_TOO_LARGE"),
    TooManyRecipients: MatrixCode(413, "M_TOO_LARGE"),
    StreamNotServed: MatrixCode(404, "M_UNRECOGNIZED"),
    DamagedRoom: MatrixCode(500, "M_UNKNOWN"),
    UnknownAlias: MatrixCode(404, "M_NOT_FOUND"),
    AliasInUse: MatrixCode(400, "M_ROOM_IN_USE"),
    RedactedEventUnknown: MatrixCode(404, "M_NOT_FOUND"),
    StillInRoom: MatrixCode(400, "M_UNKNOWN"),
    TooManyExtremities: MatrixCode(503, "M_UNKNOWN"),
    ResolutionTooLarge: MatrixCode(503, "M_UNKNOWN"),
    StateNotKnownYet: MatrixCode(503, "M_UNKNOWN", ("retry_after_ms",)),
    CommitUnknown: MatrixCode(
        503, "M_UNKNOWN", is_private=True
    ),  # a repeated transaction ID gets the same event
    # Their messages name other servers, and nothing else that is not public.
    NoServerToAsk: MatrixCode(404, "M_NOT_FOUND"),
    RoomNotAtServers: MatrixCode(404, "M_NOT_FOUND"),
    RefusedByServers: MatrixCode(403, "M_FORBIDDEN"),
    RoomVersionNotSpoken: MatrixCode(400, "M_INCOMPATIBLE_ROOM_VERSION", ("room_version",)),
    ServersDidNotHelp: MatrixCode(502, "M_UNKNOWN"),
    JoinGoesOn: MatrixCode(504, "M_UNKNOWN"),
    TooManyJoins: MatrixCode(503, "M_UNKNOWN"),
    JoinUnderWay: MatrixCode(503, "M_UNKNOWN", is_private=True),
    JoinInterrupted: MatrixCode(503, "M_UNKNOWN", is_private=True),
    NotStorable: MatrixCode(400, "M_BAD_JSON"),
    BadIdentifier: MatrixCode(400, "M_INVALID_PARAM"),
    BadEvent: MatrixCode(400, "M_BAD_JSON"),
    NoCanonicalJson: MatrixCode(400, "M_BAD_JSON"),
    UnknownRoomVersion: MatrixCode(400, "M_UNSUPPORTED_ROOM_VERSION"),
}

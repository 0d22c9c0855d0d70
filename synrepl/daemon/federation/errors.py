"""How errors of services are answered to other servers.

Errors that are not listed are answered by their family: an ``InputError`` as ``M_INVALID_PARAM``, a ``Refused`` as
``M_FORBIDDEN``, an ``Unavailable`` with status 503.
"""

from __future__ import annotations

from synrepl.adapters.client_api.errors import ErrorTable, MatrixCode
from synrepl.daemon.federation.directory import SpaceNotHere, UserNotHere
from synrepl.daemon.federation.keys import BadKeyQuery
from synrepl.rooms import BadEvent, BadIdentifier, NoCanonicalJson, UnknownRoomVersion
from synrepl.services.federation.inbound.admission import NotInThisRoom
from synrepl.services.federation.inbound.transactions import TooManyTransactions
from synrepl.services.federation.resident.arrivals import BadMembershipEvent
from synrepl.services.federation.resident.invites import BadInvite, InviteVersionUnknown
from synrepl.services.federation.resident.room_access import NotFullyJoined, StateStillPartial
from synrepl.services.federation.resident.state_streams import TooManyStateRequests
from synrepl.services.federation.resident.templates import IncompatibleRoomVersion
from synrepl.storage.database import CommitUnknown
from synrepl.storage.federation.remote_joins import UnableToAuthoriseJoin, UnableToGrantJoin
from synrepl.storage.federation.served_events import NoEventAtTime
from synrepl.storage.rooms.persisting.limits import ResolutionTooLarge, TooManyExtremities
from synrepl.storage.rooms.reading.event_access import (
    EventInOtherRoom,
    EventIsOutlier,
    EventNotStored,
    PartialEvent,
)
from synrepl.storage.rooms.tables.aliases import UnknownAlias
from synrepl.storage.rooms.tables.incoming import NotStorable
from synrepl.storage.rooms.tables.numbers import OtherRoomVersion, UnknownRoom

#: As servers in the wild say it, since the proposal is not accepted: MSC3895.
PARTIAL_STATE_CODE = "ORG.MATRIX.MSC3895_UNABLE_DUE_TO_PARTIAL_STATE"

_NOT_FOUND = MatrixCode(404, "M_NOT_FOUND")

FEDERATION_ERRORS: ErrorTable = {
    BadKeyQuery: MatrixCode(400, "M_BAD_JSON"),
    TooManyTransactions: MatrixCode(429, "M_LIMIT_EXCEEDED"),
    TooManyStateRequests: MatrixCode(429, "M_LIMIT_EXCEEDED"),
    UnknownRoom: _NOT_FOUND,
    NotInThisRoom: _NOT_FOUND,
    NotFullyJoined: _NOT_FOUND,
    EventNotStored: _NOT_FOUND,
    EventInOtherRoom: _NOT_FOUND,
    EventIsOutlier: _NOT_FOUND,
    NoEventAtTime: _NOT_FOUND,
    UnknownAlias: _NOT_FOUND,
    UserNotHere: _NOT_FOUND,
    SpaceNotHere: _NOT_FOUND,
    StateStillPartial: MatrixCode(403, PARTIAL_STATE_CODE),
    PartialEvent: MatrixCode(403, PARTIAL_STATE_CODE),
    IncompatibleRoomVersion: MatrixCode(400, "M_INCOMPATIBLE_ROOM_VERSION", ("room_version",)),
    InviteVersionUnknown: MatrixCode(400, "M_INCOMPATIBLE_ROOM_VERSION", ("room_version",)),
    UnableToAuthoriseJoin: MatrixCode(400, "M_UNABLE_TO_AUTHORISE_JOIN"),
    UnableToGrantJoin: MatrixCode(400, "M_UNABLE_TO_GRANT_JOIN"),
    BadMembershipEvent: MatrixCode(400, "M_BAD_JSON"),
    BadInvite: MatrixCode(400, "M_BAD_JSON"),
    NotStorable: MatrixCode(400, "M_BAD_JSON"),
    OtherRoomVersion: MatrixCode(400, "M_BAD_JSON"),
    TooManyExtremities: MatrixCode(503, "M_UNKNOWN"),
    ResolutionTooLarge: MatrixCode(503, "M_UNKNOWN"),
    CommitUnknown: MatrixCode(503, "M_UNKNOWN", is_private=True),
    BadEvent: MatrixCode(400, "M_BAD_JSON"),
    BadIdentifier: MatrixCode(400, "M_INVALID_PARAM"),
    NoCanonicalJson: MatrixCode(400, "M_BAD_JSON"),
    UnknownRoomVersion: MatrixCode(400, "M_UNSUPPORTED_ROOM_VERSION"),
}

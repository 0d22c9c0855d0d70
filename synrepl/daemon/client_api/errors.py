"""How errors of services are answered to Matrix clients.

Errors that are not listed are answered by their family: an ``InputError`` as ``M_INVALID_PARAM``, a ``Refused`` as
``M_FORBIDDEN``, an ``Unavailable`` with status 503.
"""

from __future__ import annotations

from synrepl.adapters.client_api.errors import ErrorTable, MatrixCode
from synrepl.rooms import BadEvent, NoCanonicalJson, UnknownRoomVersion
from synrepl.services.clients.identity import UnsupportedLogin
from synrepl.storage.rooms.tables.numbers import UnknownRoom

CLIENT_API_ERRORS: ErrorTable = {
    UnsupportedLogin: MatrixCode(400, "M_UNKNOWN"),
    UnknownRoom: MatrixCode(404, "M_NOT_FOUND"),
    BadEvent: MatrixCode(400, "M_BAD_JSON"),
    NoCanonicalJson: MatrixCode(400, "M_BAD_JSON"),
    UnknownRoomVersion: MatrixCode(400, "M_UNSUPPORTED_ROOM_VERSION"),
}

"""How errors of services are answered to other servers.

Errors that are not listed are answered by their family: an ``InputError`` as ``M_INVALID_PARAM``, a ``Refused`` as
``M_FORBIDDEN``, an ``Unavailable`` with status 503.
"""

from __future__ import annotations

from synrepl.adapters.client_api.errors import ErrorTable, MatrixCode
from synrepl.daemon.federation.keys import BadKeyQuery
from synrepl.rooms import BadEvent, BadIdentifier, NoCanonicalJson, UnknownRoomVersion

FEDERATION_ERRORS: ErrorTable = {
    BadKeyQuery: MatrixCode(400, "M_BAD_JSON"),
    BadEvent: MatrixCode(400, "M_BAD_JSON"),
    BadIdentifier: MatrixCode(400, "M_INVALID_PARAM"),
    NoCanonicalJson: MatrixCode(400, "M_BAD_JSON"),
    UnknownRoomVersion: MatrixCode(400, "M_UNSUPPORTED_ROOM_VERSION"),
}

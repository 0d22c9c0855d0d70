"""How errors are answered to other servers.

Source: https://spec.matrix.org/v1.16/server-server-api/#api-standards
"""

from __future__ import annotations

from synrepl.adapters.client_api.errors import TRANSPORT_ERRORS, ErrorTable, MatrixCode
from synrepl.core.errors import InputError, Refused, Unavailable
from synrepl.federation.transactions import BadTransaction
from synrepl.federation.x_matrix import (
    BadRequestSignature,
    BadXMatrix,
    MissingXMatrix,
    WrongDestination,
)


class BadFederationBody(InputError):
    """the body of this request is not acceptable: {reason}"""


class OriginNotAllowed(Refused):
    """{origin} may not take part in federation with this server"""


class TooManyOfOrigin(Unavailable):
    """{limit} requests of {origin} are being answered already; try again in {retry_after_ms} ms"""


class TooManyUnknownKeys(Unavailable):
    """{limit} requests wait already for keys of servers that are not known here; try again"""


FEDERATION_TRANSPORT_ERRORS: ErrorTable = {
    **TRANSPORT_ERRORS,
    MissingXMatrix: MatrixCode(401, "M_UNAUTHORIZED"),
    BadXMatrix: MatrixCode(401, "M_UNAUTHORIZED"),
    WrongDestination: MatrixCode(401, "M_UNAUTHORIZED"),
    BadRequestSignature: MatrixCode(401, "M_UNAUTHORIZED"),
    BadFederationBody: MatrixCode(400, "M_BAD_JSON"),
    BadTransaction: MatrixCode(400, "M_BAD_JSON"),
    TooManyOfOrigin: MatrixCode(429, "M_LIMIT_EXCEEDED", ("retry_after_ms",)),
}

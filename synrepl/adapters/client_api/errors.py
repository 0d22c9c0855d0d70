"""Maps errors to the answers of Matrix's client-server API.

Source: https://spec.matrix.org/v1.16/client-server-api/#standard-error-response.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.adapters.http.errors import RETRY_AFTER_S
from synrepl.adapters.http.limits import BadRequest, BodyTooLarge, RequestTooSlow
from synrepl.adapters.http.messages import BadHeader, BadQuery, HttpAnswer, json_answer
from synrepl.adapters.http.routes import MethodNotAllowed, NoSuchPath
from synrepl.core.errors import InputError, Refused, SynreplError, Unavailable
from synrepl.core.jsons import BadJson

_log = Logger()


class MatrixCode(NamedTuple):
    """How an error is answered.

    :ivar members: facts of the error that become members of the body
    :ivar is_private: the message is logged and not sent, because it may name processes, files or addresses
    """

    status: int
    errcode: str
    members: tuple[str, ...] = ()
    is_private: bool = False


#: How errors are answered, by class; the nearest base class counts.
ErrorTable = Mapping[type[SynreplError], MatrixCode]


class MissingToken(Refused):
    """this needs an access token, as the header 'Authorization: Bearer …'"""


class UnknownToken(Refused):
    """the access token is not known, or no longer valid; log in again"""


class BadClientBody(InputError):
    """the body of this request is not acceptable{place}: {reason}"""


class RateLimited(Unavailable):
    """too many requests; try again in {retry_after_ms} ms"""


TRANSPORT_ERRORS: ErrorTable = {
    NoSuchPath: MatrixCode(404, "M_UNRECOGNIZED"),
    MethodNotAllowed: MatrixCode(405, "M_UNRECOGNIZED"),
    MissingToken: MatrixCode(401, "M_MISSING_TOKEN"),
    UnknownToken: MatrixCode(401, "M_UNKNOWN_TOKEN"),
    BodyTooLarge: MatrixCode(413, "M_TOO_LARGE"),
    BadJson: MatrixCode(400, "M_NOT_JSON"),
    BadClientBody: MatrixCode(400, "M_BAD_JSON"),
    BadQuery: MatrixCode(400, "M_INVALID_PARAM"),
    BadHeader: MatrixCode(400, "M_INVALID_PARAM"),
    BadRequest: MatrixCode(400, "M_UNKNOWN"),
    RequestTooSlow: MatrixCode(408, "M_UNKNOWN"),
    RateLimited: MatrixCode(429, "M_LIMIT_EXCEEDED", ("retry_after_ms",)),
    InputError: MatrixCode(400, "M_INVALID_PARAM"),
    Refused: MatrixCode(403, "M_FORBIDDEN"),
    Unavailable: MatrixCode(503, "M_UNKNOWN", is_private=True),
}

#: What clients get instead of a private message.
AWAY_TEXT = "the server cannot do this now; try again later"


def matrix_error_answer(error: Exception, table: ErrorTable) -> HttpAnswer:
    """The answer for an error: ``{"errcode": code, "error": text}`` and the members of the code.

    Details of an unexpected error are logged and not sent to the client.
    """
    code = _code(type(error), table)
    if code is None:
        _log.failure("a client's request failed", failure=Failure(error))
        return json_answer({"errcode": "M_UNKNOWN", "error": "Internal server error"}, 500)
    facts = getattr(error, "facts", {})
    text = _encodable(str(error))
    if code.is_private:
        _log.info("a client's request cannot be carried out now: {error}", error=text)
        text = AWAY_TEXT
    body = {"errcode": code.errcode, "error": text}
    body |= {name: facts[name] for name in code.members if name in facts}
    answer = json_answer(body, code.status)
    return HttpAnswer(code.status, answer.body, headers=_headers(code.status, error))


def _code(kind: type[BaseException], table: ErrorTable) -> MatrixCode | None:
    return next((table[cls] for cls in kind.__mro__ if cls in table), None)


def _encodable(text: str) -> str:
    """A message may quote a lone surrogate, which UTF-8 does not have."""
    return text.encode("utf-8", "backslashreplace").decode()


def _headers(status: int, error: Exception) -> list[tuple[str, str]]:
    facts = getattr(error, "facts", {})
    if "retry_after_ms" in facts:
        wait_ms = int(str(facts["retry_after_ms"]))
        return [("Retry-After", str(-(-wait_ms // 1000)))]
    if status == 503:
        return [("Retry-After", str(RETRY_AFTER_S))]
    if isinstance(error, MethodNotAllowed):
        return [("Allow", f"{error.facts['allowed']}, OPTIONS")]
    return []

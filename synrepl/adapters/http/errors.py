"""Maps errors to HTTP answers."""

from __future__ import annotations

from collections.abc import Mapping

from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.adapters.http.hosts import CrossSite, WrongHost
from synrepl.adapters.http.limits import BodyTooLarge, RequestTooSlow
from synrepl.adapters.http.messages import HttpAnswer, json_answer
from synrepl.adapters.http.routes import MethodNotAllowed, NoSuchPath
from synrepl.core.errors import InputError, Refused, SynreplError, Unavailable
from synrepl.storage.database import CommitUnknown
from synrepl.storage.store import BadValue, FactsLost, KeyReused, Trimmed
from synrepl.streams.catalogue import UnknownStream

#: The Retry-After header of a 503, in seconds.
RETRY_AFTER_S = 1


class Unauthorized(Refused):
    """this needs the secret, as the header 'Authorization: Bearer …'"""


_STATUSES: Mapping[type[SynreplError], int] = {
    NoSuchPath: 404,
    MethodNotAllowed: 405,
    BodyTooLarge: 413,
    Unauthorized: 401,
    CrossSite: 403,
    RequestTooSlow: 408,
    WrongHost: 421,
    UnknownStream: 404,
    KeyReused: 422,  # as the IETF's draft on Idempotency-Key has it
    Trimmed: 410,
    FactsLost: 410,
    BadValue: 400,
    CommitUnknown: 500,  # not 503: to send it again without a key may write it twice
    InputError: 400,
    Refused: 409,
    Unavailable: 503,
}

#: Facts of an error that become members of the body.
_REPORTED_NUMBERS = ("trimmed", "kept", "floor")
_REPORTED_TEXTS = ("path", "assigned_to")

_log = Logger()


def error_answer(error: Exception, statuses: Mapping[type[SynreplError], int]) -> HttpAnswer:
    """The answer for an error of a handler.

    Details of an unexpected error are logged and not sent to the client.

    :param statuses: overrides of the route, by error class
    """
    status = _status(type(error), statuses)
    if status is None:
        _log.failure("a request failed", failure=Failure(error))
        return json_answer(
            {"error": "InternalError", "message": "something went wrong here; the log has it"},
            500,
        )
    answer = json_answer(error_body(error), status)
    return HttpAnswer(status, answer.body, headers=_headers(status, error))


def error_body(error: Exception) -> dict[str, object]:
    """``{"error": name, "message": text}``, with facts such as ``path`` or ``trimmed`` where known."""
    facts = getattr(error, "facts", {})
    members: dict[str, object] = {
        name: facts[name] for name in _REPORTED_NUMBERS if isinstance(facts.get(name), int)
    }
    for name in _REPORTED_TEXTS:
        if isinstance(facts.get(name), str):
            members[name] = _encodable(facts[name])
    return {"error": type(error).__name__, "message": _encodable(str(error)), **members}


def _encodable(text: str) -> str:
    """A message may quote a lone surrogate, which UTF-8 does not have."""
    return text.encode("utf-8", "backslashreplace").decode()


def _status(kind: type[BaseException], statuses: Mapping[type[SynreplError], int]) -> int | None:
    for cls in kind.__mro__:
        if cls in statuses:
            return statuses[cls]
        if cls in _STATUSES:
            return _STATUSES[cls]
    return None


def _headers(status: int, error: Exception) -> list[tuple[str, str]]:
    if status == 503:
        return [("Retry-After", str(RETRY_AFTER_S))]
    if status == 401:
        return [("WWW-Authenticate", "Bearer")]
    if isinstance(error, MethodNotAllowed):
        return [("Allow", str(error.facts["allowed"]))]
    return []

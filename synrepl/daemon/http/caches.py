"""``GET /caches`` and ``POST /caches/audit``: counts of a process's caches, and an audit of them."""

from __future__ import annotations

import msgspec

from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.caches.registry import Caches
from synrepl.core.errors import InputError, Refused
from synrepl.tools.audit.audit import MOST_KEYS, Auditor

#: Default number of entries that an audit checks.
DEFAULT_KEYS = 100


class BadAudit(InputError):
    """an audit cannot be asked for like this: {reason}; send no body, or a JSON object with 'keys', a number from 1 to {most}"""


class NothingToCompareWith(Refused):
    """this process cannot audit its caches: it has no synrepl database to see what is committed; set 'database' in its configuration, or audit another process"""


class _AuditRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an audit request."""

    keys: int = DEFAULT_KEYS


_DECODER = msgspec.json.Decoder(_AuditRequest)


def cache_routes(caches: Caches, auditor: Auditor | None) -> list[Route]:
    """The routes of a process for its caches.

    :param auditor: None in a process without a database
    """

    async def counts(request: HttpRequest) -> HttpAnswer:
        return json_answer({"caches": caches.stats()})

    async def audit(request: HttpRequest) -> HttpAnswer:
        keys = requested_keys(request.body)
        if auditor is None:
            raise NothingToCompareWith()
        report = await auditor.audit(keys)
        return json_answer(report.to_json())

    return [
        Route("GET", "/caches", counts),
        Route("POST", "/caches/audit", audit, takes_body=True),
    ]


def requested_keys(body: bytes) -> int:
    """The number of entries to audit, from the body of a request.

    :raises BadAudit: the body is malformed, or the number is out of range
    """
    if not body.strip():
        return DEFAULT_KEYS
    try:
        keys = _DECODER.decode(body).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadAudit(reason=str(error)[:200], most=MOST_KEYS) from None
    if not 1 <= keys <= MOST_KEYS:
        raise BadAudit(reason=f"'keys' is {keys}", most=MOST_KEYS)
    return keys

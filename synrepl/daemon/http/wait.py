"""``GET /streams/<stream>/wait``: read your writes over HTTP."""

from __future__ import annotations

from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import parse_token
from synrepl.daemon.config import units
from synrepl.services.serving.stream_updates import MissingParameter
from synrepl.services.waiting.wait_for import LONGEST_WAIT_S, WAIT_S, BadWait, WaitFor, WaitTimedOut


def wait_route(waiting: WaitFor) -> Route:
    """The route that waits for a position of this process.

    The query has ``token``, and optionally ``writer`` and ``timeout``. The answer
    repeats stream, writer and token, and adds ``position``.
    """

    async def wait(request: HttpRequest) -> HttpAnswer:
        stream, query = request.path["stream"], request.query
        if "token" not in query:
            raise MissingParameter(name="token")
        token, writer = parse_token(query["token"]), query.get("writer") or None
        position = await waiting.wait_for(stream, writer, token, _seconds(query.get("timeout")))
        return json_answer(
            {"stream": stream, "writer": writer, "token": token, "position": position}
        )

    statuses: dict[type[SynreplError], int] = {WaitTimedOut: 504}
    return Route("GET", "/streams/<stream>/wait", wait, waits=True, statuses=statuses)


def _seconds(text: str | None) -> float:
    """Parse a timeout: a duration as in the configuration, or a plain number of seconds.

    :raises BadWait: it is neither
    """
    if text is None:
        return WAIT_S
    try:
        return units.duration(f"{text}s" if text[-1:].isdigit() else text)
    except ValueError:
        raise BadWait(value=text[:40], longest=LONGEST_WAIT_S) from None

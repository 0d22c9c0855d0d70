"""The HTTP routes of masters and workers, and the services that answer them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib.resources import files
from typing import Any

from synrepl.adapters.http.messages import JSON, HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.routes import Handle, Route
from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.tokens import parse_token
from synrepl.daemon.config import units
from synrepl.services.bus.own_writer import AnnouncedStream
from synrepl.services.serving.stream_updates import MissingParameter, StreamUpdates
from synrepl.services.status.readiness import Readiness
from synrepl.services.waiting.wait_for import LONGEST_WAIT_S, WAIT_S, BadWait, WaitFor, WaitTimedOut
from synrepl.services.writing.intake import Intake
from synrepl.storage.store import FactStore
from synrepl.streams.catalogue import Catalogue, UnknownStream
from synrepl.streams.definition import Stream

#: Returns the status, as :mod:`synrepl.services.status.status` makes it.
Status = Callable[[], dict[str, Any]]

#: Returns the metrics in Prometheus's text format, and its content type.
Metrics = Callable[[], tuple[bytes, str]]

_UPDATES = "/_synapse/replication/get_repl_stream_updates/<stream>"

_PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}

#: The page may load its own script and style, and send requests to its own server; nothing else.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def common_routes(readiness: Readiness, status: Status, metrics: Metrics) -> list[Route]:
    """The routes of every process.

    The page itself is public, because a browser cannot send the secret with its request. It
    contains no data: it asks the user for the secret, and requests ``/status`` with it.
    """
    return [
        Route(
            "GET",
            "/health",
            _immediate(lambda: json_answer({"alive": True})),
            public=True,
            immediate=True,
        ),
        Route("GET", "/ready", _immediate(lambda: _ready(readiness)), immediate=True),
        Route("GET", "/status", _immediate(lambda: json_answer(status())), unqueued=True),
        Route("GET", "/metrics", _immediate(lambda: _metrics(metrics)), unqueued=True),
        *(Route("GET", path, _file(*file), public=True) for path, file in _PAGE.items()),
    ]


def master_routes(
    intake: Intake, updates: StreamUpdates, readiness: Readiness, status: Status, metrics: Metrics
) -> list[Route]:
    """The routes of a master."""

    return [
        append_route(intake),
        *updates_routes(updates),
        *common_routes(readiness, status, metrics),
    ]


def updates_routes(updates: StreamUpdates) -> list[Route]:
    """The routes for fetching missed facts."""

    async def missed(request: HttpRequest) -> HttpAnswer:
        body = await updates.answer(request.path["stream"], request.query)
        return HttpAnswer(200, body, JSON)

    as_real_servers_do: Mapping[type[SynreplError], int] = {UnknownStream: 400}
    return [
        Route("GET", _UPDATES, missed, statuses=as_real_servers_do),
        Route("GET", f"{_UPDATES}/<request>", missed, statuses=as_real_servers_do),
    ]


def memory_routes(
    scheduler: Scheduler,
    streams: Iterable[Stream],
    states: Mapping[str, AnnouncedStream],
    store: FactStore,
    log: Logger,
) -> list[Route]:
    """The routes for fetching missed facts of in-memory streams, which only their writer has."""
    kept = [stream for stream in streams if stream.in_memory]
    return (
        updates_routes(StreamUpdates(scheduler, Catalogue(kept), states, store, log))
        if kept
        else []
    )


def append_route(intake: Intake) -> Route:
    """The route for appending facts."""

    async def append(request: HttpRequest) -> HttpAnswer:
        key = request.header("Idempotency-Key")
        appended = await intake.append(request.path["stream"], request.body, key)
        return json_answer(appended.to_json())

    return Route("POST", "/streams/<stream>/facts", append, takes_body=True)


def _immediate(make: Callable[[], HttpAnswer]) -> Handle:
    async def handle(request: HttpRequest) -> HttpAnswer:
        return make()

    return handle


def _ready(readiness: Readiness) -> HttpAnswer:
    body = readiness.to_json()
    return json_answer(body, 200 if body["ready"] else 503)


def _metrics(metrics: Metrics) -> HttpAnswer:
    body, content_type = metrics()
    return HttpAnswer(200, body, content_type)


def _file(name: str, content_type: str) -> Callable[[HttpRequest], Awaitable[HttpAnswer]]:
    body = files("synrepl.daemon.http").joinpath("page", name).read_bytes()
    headers = (
        ("Content-Security-Policy", _POLICY),
        ("Referrer-Policy", "no-referrer"),
        ("X-Frame-Options", "DENY"),
    )
    return _immediate(lambda: HttpAnswer(200, body, content_type, headers))


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

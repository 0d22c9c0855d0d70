"""Routes of the HTTP listener: which handler answers which path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote

from synrepl.adapters.http.messages import HttpAnswer, HttpRequest
from synrepl.core.errors import InputError, SynreplError

Handle = Callable[[HttpRequest], Awaitable[HttpAnswer]]


class NoSuchPath(InputError):
    """there is nothing at this path"""


class MethodNotAllowed(InputError):
    """{method} is not for this path; use {allowed}"""


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    :ivar pattern: a path; a segment ``<name>`` matches any one segment
    :ivar public: answered without the secret
    :ivar takes_body: its requests have a body
    :ivar waits: its handler waits for other processes. Such requests take no slot
        from others, and are cancelled when the client disconnects
    :ivar unqueued: its handler does not wait, so its requests need no slot
    :ivar immediate: likewise, and it is cheap, so its requests have a budget of their own
    :ivar statuses: statuses that differ from the default, by error class
    """

    method: str
    pattern: str
    handle: Handle
    public: bool = False
    takes_body: bool = False
    waits: bool = False
    unqueued: bool = False
    immediate: bool = False
    statuses: Mapping[type[SynreplError], int] = field(default_factory=dict)


class Match(NamedTuple):
    """A route, and the values of its placeholders."""

    route: Route
    path: Mapping[str, str]


class Router:
    """Finds the route of a request. ``GET`` routes answer ``HEAD`` too."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [(route, tuple(route.pattern.split("/"))) for route in routes]

    def find(self, method: str, path: bytes) -> Match:
        """The route for a request.

        :param path: the path of the URL, undecoded
        :raises NoSuchPath: :raises MethodNotAllowed:
        """
        segments = _segments(path)
        wanted = "GET" if method == "HEAD" else method
        allowed: list[str] = []
        for route, pattern in self._routes:
            found = _match(pattern, segments)
            if found is not None:
                if route.method == wanted:
                    return Match(route, found)
                allowed.append(route.method)
        if allowed:
            raise MethodNotAllowed(method=method[:20], allowed=", ".join(allowed))
        raise NoSuchPath()


def _segments(path: bytes) -> list[str]:
    try:
        return [unquote(part, errors="strict") for part in path.decode("ascii").split("/")]
    except UnicodeDecodeError:
        raise NoSuchPath() from None


def _match(pattern: Sequence[str], segments: Sequence[str]) -> dict[str, str] | None:
    if len(pattern) != len(segments):
        return None
    found: dict[str, str] = {}
    for part, segment in zip(pattern, segments, strict=True):
        if part.startswith("<"):
            found[part[1:-1]] = segment
        elif part != segment:
            return None
    return found

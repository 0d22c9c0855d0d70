"""Which handler answers which path."""

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
    """One row of the table.

    :ivar pattern: segments, of which ``<name>`` stands for any one
    :ivar public: to be answered without the secret
    :ivar takes_body: its requests have a body
    :ivar waits: its handler waits for what others do. Such requests take no
        place from others, and are cancelled when the client goes away
    :ivar unqueued: its handler does not wait, so its requests need no place
    :ivar immediate: likewise, and it is cheap: its requests do not wait behind others
    :ivar statuses: what this route answers differently, by class of error
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
    """A route, and what its placeholders stand for."""

    route: Route
    path: Mapping[str, str]


class Router:
    """The table of routes. ``GET`` routes answer ``HEAD`` too."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [(route, tuple(route.pattern.split("/"))) for route in routes]

    def find(self, method: str, path: bytes) -> Match:
        """The route for a request.

        :param path: of the URL, as it came
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

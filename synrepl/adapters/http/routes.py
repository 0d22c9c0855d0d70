"""Routes of the HTTP listener: which handler answers which path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote

from synrepl.adapters.http.messages import HttpAnswer, HttpRequest
from synrepl.core.errors import InputError, SynreplError

#: Maximum number of slashes in a path; no route has as many.
MAX_SEGMENTS = 30

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
    :ivar repeatable: parameters of the URL that may be repeated; the first value counts
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
    repeatable: frozenset[str] = frozenset()
    statuses: Mapping[type[SynreplError], int] = field(default_factory=dict)

    @property
    def segments(self) -> list[str]:
        """The segments of the pattern."""
        return self.pattern.split("/")


class Match(NamedTuple):
    """A route, and the values of its placeholders."""

    route: Route
    path: Mapping[str, str]


class _RouteEnd(NamedTuple):
    """A route at the end of its pattern.

    :ivar placeholders: place among the segments and name of each
    """

    route: Route
    placeholders: Sequence[tuple[int, str]]


class _RouteNode:
    """The routes whose patterns begin with the same segments.

    :ivar named: what follows, by the next segment
    :ivar routes: the routes that end here, by method
    """

    __slots__ = ("named", "placeholder", "routes")

    def __init__(self) -> None:
        self.named: dict[str, _RouteNode] = {}
        self.placeholder: _RouteNode | None = None
        self.routes: dict[str, _RouteEnd] = {}

    def add(self, segments: Sequence[str], route: Route) -> None:
        """Add a route, of which these segments remain; the first one of a method counts."""
        if not segments:
            self.routes.setdefault(route.method, _RouteEnd(route, _placeholders(route)))
            return
        if segments[0].startswith("<"):
            if self.placeholder is None:
                self.placeholder = _RouteNode()
            following = self.placeholder
        else:
            following = self.named.setdefault(segments[0], _RouteNode())
        following.add(segments[1:], route)

    def ends(self, segments: Sequence[str]) -> Iterator[_RouteNode]:
        """The nodes that a path leads to; those by name before those by placeholder."""
        begun = [(self, 0)]
        while begun:
            node, at = begun.pop()
            for place in range(at, len(segments)):
                named = node.named.get(segments[place])
                following = node.placeholder if named is None else named
                if following is None:
                    break
                if named is not None and node.placeholder is not None:
                    begun.append((node.placeholder, place + 1))
                node = following
            else:
                yield node


class Router:
    """Finds the route of a request. ``GET`` routes answer ``HEAD`` too.

    Where several patterns match, that with a name at the first segment that differs counts.

    :ivar routes: all of them
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _RouteNode()
        for route in routes:
            self._root.add(route.segments, route)

    def find(self, method: str, path: bytes) -> Match:
        """The route for a request.

        :param path: the path of the URL, undecoded
        :raises NoSuchPath: :raises MethodNotAllowed:
        """
        segments = _segments(path)
        wanted = "GET" if method == "HEAD" else method
        allowed: dict[str, None] = {}
        for node in self._root.ends(segments):
            end = node.routes.get(wanted)
            if end is not None:
                return Match(end.route, {name: segments[place] for place, name in end.placeholders})
            allowed.update(dict.fromkeys(node.routes))
        if allowed:
            raise MethodNotAllowed(method=method[:20], allowed=", ".join(allowed))
        raise NoSuchPath()


def _segments(path: bytes) -> list[str]:
    if path.count(b"/") > MAX_SEGMENTS:
        raise NoSuchPath()
    try:
        parts = path.decode("ascii").split("/")
        return [unquote(part, errors="strict") if "%" in part else part for part in parts]
    except UnicodeDecodeError:
        raise NoSuchPath() from None


def _placeholders(route: Route) -> list[tuple[int, str]]:
    parts = enumerate(route.segments)
    return [(place, part[1:-1]) for place, part in parts if part.startswith("<")]

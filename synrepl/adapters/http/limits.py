"""Limits of an HTTP listener, and the errors beyond them."""

from __future__ import annotations

from dataclasses import dataclass, field

from synrepl.adapters.tcp.connection_table import ConnectionLimits
from synrepl.core.errors import InputError, Unavailable

#: One in this many connections is reserved for requests that need no place.
RESERVED_SHARE = 8


class BodyTooLarge(InputError):
    """the body is longer than the {limit} bytes that are accepted here; send several requests"""


class TooBusy(Unavailable):
    """too many requests are being answered now; try again"""


class TooManyConnections(Unavailable):
    """too many connections are open, and this one had no whole request; try again"""


class RequestTooSlow(InputError):
    """the {part} of this request did not arrive within {seconds:g} s; send it again, faster"""


class BadRequest(InputError):
    """this request cannot be read, or not in one way only: {reason}"""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one listener.

    ===================  ==========================================================
    limit                what happens beyond it
    ===================  ==========================================================
    16 KiB of headers    400, closed (by ``twisted.web``)
    ``max_body``         413, by Content-Length at once, else while it streams
    ``max_requests``     they wait, in order: whole requests that are answered at a
                         time
    ``max_queued``       503: whole requests that wait for that
    ``queue_s``          503: seconds that one may wait
    ``max_waiting``      503: requests of routes that wait for what others do
    ``max_buffered``     503 to the slowest ones that are not whole: bytes of bodies
                         of all requests together
    ``max_unread``       cut off, those that have read nothing for longest: bytes of
                         answers that are not read
    ``connections``      closed, idle and unfinished ones first
    ``head_s``           408: the time that a request line and headers may take
    ``body_s``           408: likewise a body, and a second more for each
    ``body_rate``        bytes of it
    ``idle_s``           closed: between two requests of a connection, and the time
                         to read an answer
    ===================  ==========================================================
    """

    max_body: int = 16 * 2**20
    max_requests: int = 100
    max_queued: int = 1_000
    queue_s: float = 30.0
    max_waiting: int = 500
    max_buffered: int = 64 * 2**20
    max_unread: int = 64 * 2**20
    connections: ConnectionLimits = field(default_factory=lambda: ConnectionLimits(2_000, 1_000))
    head_s: float = 10.0
    body_s: float = 20.0
    body_rate: float = 10_000.0
    idle_s: float = 30.0

    @property
    def max_busy(self) -> int:
        """Maximum number of connections with a complete, unanswered request.

        The others can be displaced, so a request that needs no place always gets through.
        """
        total = self.connections.total
        return max(1, total - max(2, total // RESERVED_SHARE))

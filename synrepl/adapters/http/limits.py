"""Limits of an HTTP listener, and the errors raised beyond them."""

from __future__ import annotations

from dataclasses import dataclass, field

from synrepl.adapters.tcp.connection_table import ConnectionLimits
from synrepl.core.errors import InputError, Unavailable

#: One in this many connections is reserved for requests that need no slot.
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
    ``max_requests``     queued, in order: complete requests answered concurrently
    ``max_queued``       503: complete requests in that queue
    ``queue_s``          503: seconds that a request may wait in the queue
    ``max_waiting``      503: requests of routes that wait, for a position for example
    ``max_buffered``     503 to the slowest incomplete requests: bytes of bodies of all
                         requests together
    ``max_unread``       aborted, those that have read nothing for longest: bytes of
                         answers that clients have not read
    ``connections``      closed, idle and incomplete ones first
    ``head_s``           408: seconds that a request line and headers may take
    ``body_s``           408: seconds that a body may take, plus a second for every
    ``body_rate``        bytes of it
    ``idle_s``           closed: seconds between two requests of a connection, and
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

        The others can be displaced, so a request that needs no slot always gets through.
        """
        total = self.connections.total
        return max(1, total - max(2, total // RESERVED_SHARE))

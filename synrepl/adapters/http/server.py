"""The HTTP listener: a thin router over ``twisted.web``, with limits.

A request is checked as soon as its headers are complete. If it is for another host,
lacks the secret, matches no route or announces too large a body, it is answered at
once, and the rest of it is discarded. It takes a slot only when it is complete.
Who may ask is up to a :class:`~synrepl.adapters.http.policy.ListenerPolicy`.
Limits: :class:`~synrepl.adapters.http.limits.HttpLimits`.
"""

# mypy: disable-error-code="no-untyped-call"
# (the methods of twisted.web's request have no types)

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from twisted.internet.interfaces import IAddress
from twisted.web import http

from synrepl.adapters.http.admission import Admission
from synrepl.adapters.http.channel import HttpChannel
from synrepl.adapters.http.limits import HttpLimits
from synrepl.adapters.http.policy import AdminPolicy, ListenerPolicy, RequestHead
from synrepl.adapters.http.routes import Match, Route, Router
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.connection_table import ConnectionTable, address_of
from synrepl.core.clock import Clock
from synrepl.core.slices import Slices


class HttpServer(http.HTTPFactory):
    """Factory of the connections of one listener, with its counters.

    :param policy: who may ask; None for everybody on this machine
    :param sliced: limit the requests answered per turn of the reactor; immediate ones have a
        budget of their own
    :ivar responses: number of answers by (pattern of the route, status); ``-`` for no route
    :ivar connections: open connections
    :ivar admission: requests being received or answered
    :ivar router: finds the route of a request
    """

    noisy = False

    def __init__(
        self,
        clock: Clock,
        routes: Sequence[Route],
        policy: ListenerPolicy | None = None,
        limits: HttpLimits = HttpLimits(),
        sliced: bool = False,
    ) -> None:
        super().__init__(reactor=clock)  # type: ignore[arg-type]
        self.limits = limits
        self.policy = AdminPolicy() if policy is None else policy
        self.scheduler = TwistedScheduler(clock)
        self.slices = Slices(self.scheduler) if sliced else None
        self.immediate_slices = Slices(self.scheduler) if sliced else None
        self.connections: ConnectionTable[HttpChannel] = ConnectionTable(limits.connections)
        self.admission = Admission(clock, limits)
        self.responses: Counter[tuple[str, int]] = Counter()
        self.router = Router(routes)

    def buildProtocol(self, addr: IAddress | None) -> HttpChannel | None:  # type: ignore[override]
        """A channel for a new connection, within the limits; None beyond them."""
        remote_address = address_of(addr)
        return (
            HttpChannel(self, remote_address)
            if self.connections.make_room(remote_address)
            else None
        )

    def serve(self, routes: Sequence[Route]) -> None:
        """Replace the routes."""
        self.router = Router(routes)

    def startFactory(self) -> None:
        """Do nothing: there is no access log, and no timer for one."""

    def stopFactory(self) -> None:
        """See :meth:`startFactory`."""

    def log(self, request: http.Request) -> None:
        """See :meth:`startFactory`."""

    def close_connections(self) -> None:
        """Close idle connections now, and the others once their request is answered."""
        for channel in self.connections:
            channel.close_when_answered()

    def match(self, head: RequestHead) -> Match:
        """The route of a request that the policy admits.

        :raises SynreplError: it does not
        """
        return self.policy.admit(head, self.router)

"""The catch-up lane: sends legacy clients the rows that they missed, at their own pace."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from synrepl.core.clock import Scheduler
from synrepl.core.log import Logger
from synrepl.core.semaphore import Semaphore
from synrepl.core.slices import Slices
from synrepl.core.tokens import Range, Token
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.announcing.stream_state import StreamState
from synrepl.services.serving.client_connection import ClientConnection, audience
from synrepl.services.serving.stream_updates import page_skipping_trimmed
from synrepl.services.sizes import DEFAULT_SIZES, Sizes
from synrepl.services.sources import FactSource
from synrepl.streams.definition import Stream

#: Fixed cost of a REPLICATE, and lines per unit, for :class:`Slices`.
_COST = 20
_LINES_PER_UNIT = 10


class ClientCatchUp:
    """The catch-up of one connection on one stream.

    :ivar after: position of the client
    :ivar asked: whether the client requested it; if not, it takes the lines for live ones,
        so no token may be repeated
    :ivar asks: number of requests so far; the latest one counts
    """

    def __init__(self) -> None:
        self.after: Token = 0
        self.asked = True
        self.asks = 0

    def ask(self, after: Token, asked: bool) -> None:
        """Start, or restart from another token."""
        self.after = after
        self.asked = asked
        self.asks += 1


class CatchUpLane:
    """Sends missed rows, page by page.

    :param states: positions of all streams, by name
    :param source: where missed facts are read from
    :param slices: budget for encoding and sending
    :param connected: returns whether the master still has a connection
    """

    def __init__(
        self,
        scheduler: Scheduler,
        slices: Slices,
        states: Mapping[str, StreamState],
        publisher: Publisher,
        source: FactSource,
        connected: Callable[[ClientConnection], bool],
        log: Logger,
        sizes: Sizes = DEFAULT_SIZES,
    ) -> None:
        self._page_rows = sizes.page_rows
        self._slices = slices
        self._states = states
        self._publisher = publisher
        self._source = source
        self._connected = connected
        self._log = log
        self._reading = Semaphore(scheduler, sizes.pages_at_a_time)

    async def run(
        self, connection: ClientConnection, stream: Stream, catch_up: ClientCatchUp
    ) -> bool:
        """Send all rows from the requested token up to the current position.

        :returns: False if the connection was lost
        :raises Trimmed: requested rows have been deleted
        :raises SynreplError: the rows cannot be read now
        """
        asks = 0
        while asks != catch_up.asks:
            asks = catch_up.asks
            await self._slices.step(_COST)
            if not await self._send(connection, stream, catch_up, asks):
                return False
        return True

    async def _send(
        self, connection: ClientConnection, stream: Stream, catch_up: ClientCatchUp, asks: int
    ) -> bool:
        """Send pages until a newer request arrives; False as in :meth:`run`."""
        state, after = self._states[stream.name], catch_up.after
        if not self._is_open(connection):
            return False
        encoder = self._publisher.encoder(audience(connection))
        while after < state.linear:
            async with self._reading:
                if not self._is_open(connection):
                    return False
                if catch_up.asks != asks:
                    return True
                span = Range(after, state.linear)
                page = await page_skipping_trimmed(
                    self._source, stream, span, self._page_rows, connection.name, self._log
                )
            if catch_up.asked or not page.facts:
                chunks = encoder.catch_up(stream, page.facts)
            else:
                chunks = encoder.live(stream, "", after, page.facts[-1].token, page.facts)
            for chunk in chunks:
                await self._slices.step(1 + chunk.lines // _LINES_PER_UNIT)
                if catch_up.asks != asks:
                    return True
                if not await connection.write_catch_up(chunk):
                    return False
            after = page.upto
        return self._is_open(connection)

    def _is_open(self, connection: ClientConnection) -> bool:
        return self._connected(connection) and not connection.closing

"""Two sessions connected in memory, with a transcript of their lines."""

from __future__ import annotations

from synrepl.wire.commands import Command
from synrepl.wire.dialects import MODERN, Dialect, Side
from synrepl.wire.session import ProtocolSession, SessionLimits


class ConnectionPair:
    """A server and a client. All bytes are delivered until both have nothing to say.

    :ivar transcript: every line, ``S> `` or ``C> `` in front
    :ivar received: the commands that each side's ``receive`` returned
    """

    def __init__(
        self,
        client_dialect: Dialect = MODERN,
        *,
        expected: str | None = "example.com",
        limits: SessionLimits | None = None,
        now: float = 1000.0,
    ) -> None:
        self.now = now
        limits = limits or SessionLimits()
        self.server = ProtocolSession(
            Side.SERVER, server_name="example.com", now=now, limits=limits
        )
        self.client = ProtocolSession(
            Side.CLIENT,
            server_name=expected,
            name="w1",
            dialect=client_dialect,
            now=now,
            limits=limits,
        )
        self.transcript: list[str] = []
        self.received: dict[Side, list[Command]] = {Side.SERVER: [], Side.CLIENT: []}
        self.server.start()
        self.client.start()

    def deliver(self) -> list[str]:
        """Deliver bytes both ways; return the delivered lines, which are also added to the transcript."""
        lines: list[str] = []
        moved = True
        while moved:
            moved = False
            for sender, mark, receiver, side in (
                (self.server, "S> ", self.client, Side.CLIENT),
                (self.client, "C> ", self.server, Side.SERVER),
            ):
                data = sender.data_to_send()
                if data:
                    moved = True
                    lines += [mark + line for line in data.decode().split("\n")[:-1]]
                    self.received[side] += receiver.receive(data, self.now)
        self.transcript += lines
        return lines

    def advance(self, seconds: float) -> list[str]:
        """Advance the time, and tick both sides when due."""
        lines: list[str] = []
        end = self.now + seconds
        for _ in range(1000):
            due = [t for s in (self.server, self.client) if (t := s.next_tick) is not None]
            if not due or min(due) > end:
                self.now = end
                return lines
            self.now = max(self.now, min(due))
            self.server.tick(self.now)
            self.client.tick(self.now)
            lines += self.deliver()
        raise AssertionError("ticking does not move the sessions on")

"""Which channel a line goes to, and which ones a process hears.

Source: recordings of real processes on Redis. One channel, named after the
server, has all lines; ``<server_name>/USER_IP`` has USER_IP, for the one
process that takes it. Among processes of synrepl alone, each stream may have a
channel of its own, so that nobody receives streams that it does not follow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from synrepl.wire.commands import Command, Position, Rdata, UserIp


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of one server.

    :ivar server_name: the name of the main channel, and the prefix of the others
    :ivar per_stream: RDATA and POSITION go to a channel per stream, which no real
        Synapse process hears
    """

    server_name: str
    per_stream: bool = False

    @property
    def main(self) -> str:
        """Where everything goes that has no channel of its own."""
        return self.server_name

    @property
    def user_ip(self) -> str:
        """Where USER_IP goes."""
        return f"{self.server_name}/USER_IP"

    def of_stream(self, stream: str) -> str:
        """Where the rows and positions of a stream go."""
        return f"{self.server_name}/stream/{stream}" if self.per_stream else self.main

    def of_command(self, command: Command) -> str:
        """Where a command goes."""
        if isinstance(command, UserIp):
            return self.user_ip
        if isinstance(command, Rdata | Position):
            return self.of_stream(command.stream)
        return self.main

    def of_process(self, name: str) -> str:
        """What processes of this name hear, of which there should be one; among synrepl alone."""
        return f"{self.server_name}/process/{name}"

    def subscriptions(
        self, streams: Iterable[str], user_ip: bool, name: str | None = None
    ) -> tuple[str, ...]:
        """What a process subscribes to.

        :param streams: the names of those that it follows
        :param user_ip: it is the one that takes USER_IP
        :param name: of the process, if it wants to hear of others of that name
        """
        more = [self.user_ip] if user_ip else []
        more += [] if name is None else [self.of_process(name)]
        if self.per_stream:
            more += map(self.of_stream, streams)
        return (self.main, *more)

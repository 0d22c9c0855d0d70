"""The channel of each line, and the channels that a process subscribes to.

Source: recordings of real processes on Redis. One channel, named after the server, carries all
lines. ``<server_name>/USER_IP`` carries USER_IP, for the one process that consumes it. Where
only processes of synrepl are on the bus, each stream may have a channel of its own, so that no
process receives streams that it does not follow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from synrepl.wire.commands import Command, Position, Rdata, UserIp


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of one server.

    :ivar server_name: the name of the main channel, and the prefix of the others
    :ivar per_stream: whether RDATA and POSITION go to a channel per stream, which no real
        Synapse process subscribes to
    """

    server_name: str
    per_stream: bool = False

    @property
    def main(self) -> str:
        """The channel of all lines that have no channel of their own."""
        return self.server_name

    @property
    def user_ip(self) -> str:
        """The channel of USER_IP."""
        return f"{self.server_name}/USER_IP"

    def of_stream(self, stream: str) -> str:
        """The channel of the rows and positions of a stream."""
        return f"{self.server_name}/stream/{stream}" if self.per_stream else self.main

    def of_command(self, command: Command) -> str:
        """The channel of a command."""
        if isinstance(command, UserIp):
            return self.user_ip
        if isinstance(command, Rdata | Position):
            return self.of_stream(command.stream)
        return self.main

    def of_process(self, name: str) -> str:
        """The channel of the process with this name, which should be unique; synrepl only."""
        return f"{self.server_name}/process/{name}"

    def subscriptions(
        self, streams: Iterable[str], user_ip: bool, name: str | None = None
    ) -> tuple[str, ...]:
        """The channels that a process subscribes to.

        :param streams: the names of the streams that it follows
        :param user_ip: whether it is the process that consumes USER_IP
        :param name: of the process, if it checks for others of that name
        """
        more = [self.user_ip] if user_ip else []
        more += [] if name is None else [self.of_process(name)]
        if self.per_stream:
            more += map(self.of_stream, streams)
        return (self.main, *more)

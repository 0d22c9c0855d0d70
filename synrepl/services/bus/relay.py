"""Commands that are not about streams, from a master's TCP clients to the bus and back.

Each goes on once: what a client says is said on the bus, what is heard on the bus is
said to the clients, and nothing goes back to where it came from. (One's own messages
come back from the bus; :class:`~synrepl.services.bus.hearing.Hearing` leaves them out.)
What a real master passes on: ``docs/protocol.md``.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from synrepl.core.names import BadName, writer_name
from synrepl.services.announcing.announce import Log
from synrepl.wire.codec import may_send
from synrepl.wire.commands import Command
from synrepl.wire.dialects import CURRENT, Side
from synrepl.wire.errors import LocalProtocolError


class CommandRelay:
    """Stands between a master's clients and the bus.

    :param name: of the master, in whose name clients speak that have none
    :param say: says a command on the bus
    """

    def __init__(self, name: str, say: Callable[[Command], object], log: Log) -> None:
        self._name = name
        self._say = say
        self._log = log

    def from_client(self, source: str, command: Command) -> None:
        """Say it on the bus, if the bus has such a command.

        :param source: what the client calls itself, or where it comes from: oldest
            dialects do not say who a command is of
        """
        if not may_send(command, CURRENT, Side.CLIENT):
            return
        if getattr(command, "instance", "") is None:
            command = replace(command, instance=self._instance(source))
        try:
            self._say(command)
        except LocalProtocolError as error:  # a client of another dialect may say more
            self._log.warn("not passed on to the bus: {error}", error=error)

    def _instance(self, source: str) -> str:
        try:
            return writer_name(source)
        except BadName:
            return self._name

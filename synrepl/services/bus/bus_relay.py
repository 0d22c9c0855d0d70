"""Relays commands that are not about streams between a master's TCP clients and the bus.

Each command is relayed once, and never back to where it came from: commands of clients go to the
bus, and commands from the bus go to the clients. (A process receives its own messages from the
bus, too; :class:`~synrepl.services.bus.bus_reader.BusReader` leaves them out.)
What a real master relays: ``docs/protocol.md``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from synrepl.core.log import Logger
from synrepl.core.names import BadName, writer_name
from synrepl.wire.codec import may_send
from synrepl.wire.commands import ClearUserSync, Command, UserSync
from synrepl.wire.dialects import CURRENT, Side
from synrepl.wire.errors import LocalProtocolError

#: Maximum number of events queued while the bus is not connected; the oldest are dropped first.
MAX_UNSENT = 1_000

#: Maximum number of instances that are remembered, to be cleared when the bus is connected again.
MAX_INSTANCES = 10_000


class BusRelay:
    """Sends the commands of a master's clients on the bus.

    While the bus is not connected, the last :data:`MAX_UNSENT` events are queued. Syncing users
    are repeated when the bus is connected again, and when another process joins.

    :param name: the name of the master, which stands for clients without a name
    :param send: sends a command on the bus
    :param is_connected: whether the bus is connected
    """

    def __init__(
        self,
        name: str,
        send: Callable[[Command], object],
        log: Logger,
        is_connected: Callable[[], bool] = lambda: True,
    ) -> None:
        self._name = name
        self._send = send
        self._log = log
        self._is_connected = is_connected
        self._unsent: deque[Command] = deque(maxlen=MAX_UNSENT)
        #: Instances that may have syncing users in the view of other processes on the bus.
        self._instances: dict[str, None] = {}

    def from_client(self, source: str, command: Command) -> None:
        """Send a client's command on the bus, if its dialect has the command.

        :param source: the name of the client, or its address; the oldest dialects do not
            identify the sender of a command
        """
        if not may_send(command, CURRENT, Side.CLIENT):
            return
        if getattr(command, "instance", "") is None:
            command = replace(command, instance=self._instance(source))
        if isinstance(command, UserSync) and command.instance is not None:
            if command.syncing and len(self._instances) < MAX_INSTANCES:
                self._instances[command.instance] = None
        elif not self._is_connected():
            if not isinstance(command, ClearUserSync):
                self._unsent.append(command)
            return
        elif isinstance(command, ClearUserSync):
            self._instances.pop(command.instance, None)
        self._put(command)

    def joined(self) -> None:
        """The bus is connected again: clear what others remember, and send queued events."""
        self.clear()
        while self._unsent:
            self._put(self._unsent.popleft())

    def clear(self) -> None:
        """Send that no user syncs through the instances for which this master has sent commands."""
        instances, self._instances = self._instances, {}
        for instance in instances:
            self._put(ClearUserSync(instance))

    def _put(self, command: Command) -> None:
        try:
            self._send(command)
        except (
            LocalProtocolError
        ) as error:  # a client of another dialect may send commands that this one lacks
            self._log.warn("not relayed to the bus: {error}", error=error)

    def _instance(self, source: str) -> str:
        try:
            return writer_name(source)
        except BadName:
            return self._name

"""Commands that are not about streams, from a master's TCP clients to the bus and back.

Each goes on once: what a client says is said on the bus, what is heard on the bus is
said to the clients, and nothing goes back to where it came from. (One's own messages
come back from the bus; :class:`~synrepl.services.bus.bus_reader.BusReader` leaves them out.)
What a real master passes on: ``docs/protocol.md``.
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

#: Maximum number of events that are kept while there is no bus; the oldest go first.
MAX_UNSENT = 1_000

#: Maximum number of instances that are remembered, to be cleared when the bus is back.
MAX_INSTANCES = 10_000


class BusRelay:
    """Stands between a master's clients and the bus.

    Events that come while there is no bus are kept, the last :data:`MAX_UNSENT` of them.
    Who is syncing is said again when the bus is back, and when another process joins.

    :param name: of the master, in whose name clients speak that have none
    :param say: says a command on the bus
    :param standing: whether the bus stands
    """

    def __init__(
        self,
        name: str,
        say: Callable[[Command], object],
        log: Logger,
        standing: Callable[[], bool] = lambda: True,
    ) -> None:
        self._name = name
        self._say = say
        self._log = log
        self._standing = standing
        self._unsent: deque[Command] = deque(maxlen=MAX_UNSENT)
        #: Instances that others on the bus may take for ones with syncing users.
        self._instances: dict[str, None] = {}

    def from_client(self, source: str, command: Command) -> None:
        """Say it on the bus, if the bus has such a command.

        :param source: what the client calls itself, or where it comes from: oldest
            dialects do not say who a command is of
        """
        if not may_send(command, CURRENT, Side.CLIENT):
            return
        if getattr(command, "instance", "") is None:
            command = replace(command, instance=self._instance(source))
        if isinstance(command, UserSync) and command.instance is not None:
            if command.syncing and len(self._instances) < MAX_INSTANCES:
                self._instances[command.instance] = None
        elif not self._standing():
            if not isinstance(command, ClearUserSync):
                self._unsent.append(command)
            return
        elif isinstance(command, ClearUserSync):
            self._instances.pop(command.instance, None)
        self._put(command)

    def joined(self) -> None:
        """The bus stands again: clear what others remember, and say what they have missed."""
        self.clear()
        while self._unsent:
            self._put(self._unsent.popleft())

    def clear(self) -> None:
        """Say that nobody syncs through the instances that this master has spoken for."""
        instances, self._instances = self._instances, {}
        for instance in instances:
            self._put(ClearUserSync(instance))

    def _put(self, command: Command) -> None:
        try:
            self._say(command)
        except LocalProtocolError as error:  # a client of another dialect may say more
            self._log.warn("not passed on to the bus: {error}", error=error)

    def _instance(self, source: str) -> str:
        try:
            return writer_name(source)
        except BadName:
            return self._name

"""Relays commands that are not about streams between a master's TCP clients and the bus.

Each command is relayed once, and never back to where it came from: commands of clients go to the
bus, and commands from the bus go to the clients. (A process receives its own messages from the
bus, too; :class:`~synrepl.services.bus.bus_reader.BusReader` leaves them out.)
What a real master relays: ``docs/protocol.md``.

A master's syncing users are repeated on the bus, for processes that have joined since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from synrepl.core.clock import DelayedCall, Scheduler
from synrepl.core.log import Logger
from synrepl.core.names import BadName, writer_name
from synrepl.services.sending.outgoing_commands import REPEAT_S
from synrepl.services.serving.user_sync import UserSyncs
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


C = TypeVar("C")


class SyncingRepeater:
    """Sends all users that sync through the master and its TCP clients.

    :param bus: the source whose users came from the bus itself, which are not repeated
    """

    def __init__(
        self, scheduler: Scheduler, relay: BusRelay, user_syncs: UserSyncs[C], bus: C
    ) -> None:
        self._scheduler = scheduler
        self._relay = relay
        self._user_syncs = user_syncs
        self._bus = bus
        self._busy = False
        self._again = False
        self._repeated_at = scheduler.seconds()
        self._repeat: DelayedCall | None = None

    def joined(self) -> None:
        """The bus is connected again."""
        self._relay.joined()
        self._start()

    def process_joined(self) -> None:
        """Another process has joined: repeat, at most once in :data:`.REPEAT_S`."""
        if self._repeat is None and self._user_syncs.count:
            wait = max(0.0, self._repeated_at + REPEAT_S - self._scheduler.seconds())
            self._repeat = self._scheduler.callLater(wait, self._start)

    def stop(self) -> None:
        """Send that no user syncs through the master any more."""
        if self._repeat is not None and self._repeat.active():
            self._repeat.cancel()
        self._repeat = None
        self._relay.clear()

    def _start(self) -> None:
        self._repeat = None
        self._repeated_at = self._scheduler.seconds()
        if self._busy:
            self._again = True
            return
        self._busy = True
        self._scheduler.spawn("repeat who is syncing", self._run())

    async def _run(self) -> None:
        try:
            self._again = True
            while self._again:
                self._again = False
                await self._user_syncs.repeat(self._bus, self._send)
        finally:
            self._busy = False

    def _send(self, source: str, command: UserSync) -> None:
        self._relay.from_client(source, command)

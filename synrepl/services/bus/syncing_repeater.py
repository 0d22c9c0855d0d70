"""Repeats a master's syncing users on the bus, for processes that have joined since."""

from __future__ import annotations

from typing import TypeVar

from synrepl.core.clock import DelayedCall, Scheduler
from synrepl.services.bus.bus_relay import BusRelay
from synrepl.services.sending.outgoing_commands import REPEAT_S
from synrepl.services.serving.user_sync import UserSyncs
from synrepl.wire.commands import UserSync

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

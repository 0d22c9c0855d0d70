"""Goes on with what is left: staged events that nobody was told of, events that wait for others, old transactions.

Whatever a killed process has left is in tables, so this is also how a process begins.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.services.federation.inbound.room_inboxes import GapListener, RoomInboxes
from synrepl.services.forwarding import ForwardsToWriter, WriterActions
from synrepl.services.rooms.assignment import RoomAssignment
from synrepl.services.rooms.room_writers import RoomWriters
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.failed_fetches import failures_count, forget_failures
from synrepl.storage.federation.gaps import rooms_with_gaps
from synrepl.storage.federation.received_transactions import forget_transactions
from synrepl.storage.federation.staged_events import rooms_with_staged_events, staged_count

#: Seconds between two looks for staged events, and for events that wait for others.
SWEEP_S, GAPS_S = 5.0, 60.0

#: Seconds for which answers to transactions are kept. Servers repeat one within minutes.
KEEP_TRANSACTIONS_S = 3 * 86_400.0

#: Old transactions that are deleted at once.
FORGET_AT_ONCE = 5_000

#: The action by which one process has another one look at staged events.
WAKE_ACTION = "judge staged events"


class LeftToDo(NamedTuple):
    """What is left to do in all processes.

    :ivar staged: number of staged events
    :ivar staged_for_s: seconds for which the first of them has waited
    :ivar failed: number of missing events that no server gave
    """

    staged: int
    staged_for_s: float
    failed: int


class RoomWaker:
    """Implements :class:`.WakesRooms`. A process that cannot be reached finds the events by itself."""

    def __init__(self, scheduler: Scheduler, forwarder: ForwardsToWriter) -> None:
        self._scheduler = scheduler
        self._forwarder = forwarder
        self._waiting: dict[str, set[str]] = {}

    def wake(self, rooms: Mapping[str, str]) -> None:
        """See :meth:`.WakesRooms.wake`. One request at a time goes to each process."""
        for room_id, writer in rooms.items():
            if writer not in self._waiting:
                self._waiting[writer] = set()
                self._scheduler.spawn(f"wake {writer}", self._send(writer))
            self._waiting[writer].add(room_id)

    async def _send(self, writer: str) -> None:
        try:
            await self._scheduler.sleep(0)
            while rooms := self._waiting[writer]:
                self._waiting[writer] = set()
                await self._forwarder.forward(writer, WAKE_ACTION, {"rooms": sorted(rooms)})
        except SynreplError:
            return
        finally:
            del self._waiting[writer]


class InboundSweeper:
    """Looks for what is left to do in the rooms that are assigned to this process.

    :param inboxes: None in a process that persists no room
    :param gaps: None likewise
    :param instance: this process
    :ivar left: what is left to do in all processes, as of the last look
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        writers: RoomWriters,
        inboxes: RoomInboxes | None,
        gaps: GapListener | None,
        instance: str,
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._writers = writers
        self._inboxes = inboxes
        self._gaps = gaps
        self._instance = instance
        self._log = log
        self.left = LeftToDo(0, 0.0, 0)

    def add_actions(self, actions: WriterActions) -> None:
        """Let other processes wake rooms of this one."""
        actions.add(WAKE_ACTION, self._perform_wake)

    async def _perform_wake(self, argument: dict[str, Any]) -> None:
        if self._inboxes is not None:
            for room_id in argument["rooms"]:
                self._inboxes.wake(room_id)

    async def run(self) -> None:
        """Sweep for as long as the process runs."""
        gaps_at = forget_at = self._scheduler.seconds()
        while True:
            now = self._scheduler.seconds()
            try:
                await self.look()
                await self.wake_staged()
                if now >= gaps_at:
                    gaps_at = now + GAPS_S
                    await self.look_for_gaps()
                if now >= forget_at and await self.forget_old() < FORGET_AT_ONCE:
                    forget_at = now + KEEP_TRANSACTIONS_S / 100
            except SynreplError as error:
                self._log.warn("cannot look for events of other servers: {error}", error=error)
            await self._scheduler.sleep(SWEEP_S * (0.75 + 0.5 * self._scheduler.random()))

    async def look(self) -> None:
        """Count what is left to do."""

        def work(txn: Transaction) -> LeftToDo:
            return LeftToDo(*staged_count(txn), failures_count(txn))

        self.left = await self._database.run("count what is left", work, read_only=True)

    async def wake_staged(self) -> None:
        """Have the staged events of this process's rooms judged."""
        if self._inboxes is None:
            return
        rooms = await self._database.run("staged rooms", rooms_with_staged_events, read_only=True)
        for room_id in await self._own(rooms):
            self._inboxes.wake(room_id)

    async def look_for_gaps(self) -> None:
        """Have events fetched that others wait for in this process's rooms."""
        if self._gaps is None:
            return
        rooms = await self._database.run("rooms with gaps", rooms_with_gaps, read_only=True)
        for room_id in await self._own(rooms):
            self._gaps.gap_found(room_id, "")

    async def forget_old(self) -> int:
        """Delete some old transactions, and failures to fetch what has come since; returns the number of transactions."""

        def work(txn: Transaction) -> int:
            forget_failures(txn, FORGET_AT_ONCE)
            return forget_transactions(txn, KEEP_TRANSACTIONS_S, FORGET_AT_ONCE)

        return await self._database.run("forget transactions", work)

    async def _own(self, room_ids: Collection[str]) -> list[str]:
        if not room_ids:
            return []
        assignment: RoomAssignment = (await self._writers.place(room_ids)).assignment
        return [each for each in room_ids if assignment.writer_of(each) == self._instance]

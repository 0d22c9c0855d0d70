"""Fills gaps: fetches the events that others wait for, so that these can be judged.

First the events between are asked for (``get_missing_events``). Where that does not lead to events that are here, the
state before an event is taken from another server (``state_ids``), so that the event can be judged without what lies
before it. Such an event is checked against the current state of the room, too, so that nobody who is no member any more can
speak with the help of a server that lies. What no server gives is asked for again after ever longer times.

A room is worked on by one task, which asks a bounded number of servers and then ends. What is missing is known from
tables, so it can be killed at any moment. Source: https://spec.matrix.org/v1.16/server-server-api/#backfilling-and-retrieving-missing-events
"""

from __future__ import annotations

from collections import Counter

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.semaphore import Semaphore
from synrepl.rooms import server_of
from synrepl.services.federation.inbound.fetching import EventFetcher
from synrepl.services.federation.inbound.gap_round import MAX_ASKED, GapRound
from synrepl.services.rooms.persister import RoomPersister
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.failed_fetches import note_failures
from synrepl.storage.federation.gaps import RoomGap, read_gap

#: Rooms that are worked on at the same time.
MAX_ROOMS = 50

#: Rounds of one task, and those of them in which events between are asked for.
MAX_ROUNDS, MAX_ROUNDS_BETWEEN = 10, 4

#: Servers that sent events of a room, the last ones, which are asked first.
MAX_ORIGINS = 5


class _RoomTask:
    """A room that is worked on, or waits for its turn.

    :ivar origins: servers that sent events of it, the last one last
    :ivar is_due: there may be more to do than the task has seen
    """

    def __init__(self) -> None:
        self.origins: dict[str, None] = {}
        self.is_due = False
        self.is_started = False

    def add_origin(self, origin: str) -> None:
        """Note that a server sent an event of the room."""
        if origin:
            self.origins.pop(origin, None)
            self.origins[origin] = None
            while len(self.origins) > MAX_ORIGINS:
                del self.origins[next(iter(self.origins))]


class GapFiller:
    """Fetches what events of this process's rooms wait for. Implements :class:`.GapListener`.

    :param server_name: of this server
    :ivar outcomes: number of fetched events by outcome, and of failures by the name of the error
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        fetcher: EventFetcher,
        persister: RoomPersister,
        server_name: str,
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._fetcher = fetcher
        self._persister = persister
        self._server_name = server_name
        self._log = log
        self._places = Semaphore(scheduler, MAX_ROOMS)
        self._tasks: dict[str, _RoomTask] = {}
        self.outcomes: Counter[str] = Counter()

    @property
    def active(self) -> int:
        """Number of rooms that are worked on, or wait for that."""
        return len(self._tasks)

    def gap_found(self, room_id: str, origin: str) -> None:
        """See :meth:`.GapListener.gap_found`."""
        task = self._tasks.setdefault(room_id, _RoomTask())
        task.add_origin(origin)
        task.is_due = True
        if not task.is_started:
            task.is_started = True
            self._scheduler.spawn(f"fill a gap in {room_id}", self._run(room_id, task))

    async def _run(self, room_id: str, task: _RoomTask) -> None:
        try:
            async with self._places:
                while task.is_due:
                    task.is_due = False
                    await self._fill(room_id, task)
        except SynreplError as error:  # the next look at gaps goes on
            self._log.warn(
                "cannot fill a gap in {room_id} now: {error}", room_id=room_id, error=error
            )
        finally:
            del self._tasks[room_id]

    async def _fill(self, room_id: str, task: _RoomTask) -> None:
        """Fetch, for a bounded number of rounds, what the events of a room wait for."""
        for number in range(MAX_ROUNDS):
            gap = await self._database.run(
                "look at a gap", lambda txn: read_gap(txn, room_id), read_only=True
            )
            if gap is None:
                return
            attempt = GapRound(self._fetcher, self._persister, gap, self._servers(gap, task))
            has_come_forward = await attempt.run(is_early=number < MAX_ROUNDS_BETWEEN)
            self.outcomes.update(attempt.outcomes)
            if not has_come_forward:
                await self._give_up(gap, attempt.reason)

    def _servers(self, gap: RoomGap, task: _RoomTask) -> list[str]:
        """The servers to ask, the likeliest first: who sent an event, whose users made it, and any others."""
        others = [each for each in gap.servers if each != self._server_name]
        chosen = [
            *reversed(task.origins),
            *(server_of(each.event.sender) for each in gap.waiting[:MAX_ASKED]),
        ]
        while others and len(set(chosen)) < MAX_ASKED:
            chosen.append(others.pop(int(self._scheduler.random() * len(others))))
        return [each for each in dict.fromkeys(chosen) if each != self._server_name]

    async def _give_up(self, gap: RoomGap, reason: str) -> None:
        """Remember what no server gave; it is asked for again later."""
        missing = gap.missing
        self.outcomes["given up"] += len(missing)

        def work(txn: Transaction) -> None:
            note_failures(txn, gap.room_no, missing, reason)

        await self._database.run("events failed to fetch", work)

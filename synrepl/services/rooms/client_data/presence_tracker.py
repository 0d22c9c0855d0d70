"""Who syncs with this process, and who does anything; reported to the processes that decide presence.

A sync, or anything else that a user does, costs an entry in memory. Reports are gathered and sent every few seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.services.rooms.client_data.presence import (
    PresenceService,
    ReportedActivity,
    ReportedSync,
)
from synrepl.services.rooms.client_data.presence_states import WITHOUT_SYNC_S

#: Seconds between two reports, after which a report is repeated, and after which an activity is reported again.
REPORT_EVERY_S, REPEAT_S, REPORT_ACTIVE_S = 2.0, 60.0, 30.0

#: Users in one report.
REPORTED_AT_ONCE = 1_000

#: Maximum number of users that are kept account of. The presence of others is not changed by what they do here.
MAX_TRACKED = 200_000


@dataclass(slots=True)
class _Tracked:
    """A user that syncs here.

    :ivar began_at: when the last sync began, in seconds since 1970
    :ivar under_way: number of syncs
    :ivar ended_at: when the last one ended, if none is under way
    :ivar reported: what was reported last, and when
    """

    wanted: str
    began_at: float
    under_way: int = 0
    ended_at: float = 0.0
    reported: str | None = None
    reported_at: float = 0.0


class PresenceTracker:
    """Keeps account of users, and reports.

    :ivar is_served: whether there is presence at all
    """

    def __init__(self, scheduler: Scheduler, presence: PresenceService, log: Logger) -> None:
        self._scheduler = scheduler
        self._presence = presence
        self._log = log
        self.is_served = presence.is_served
        self._users: dict[str, _Tracked] = {}
        #: When users that have to be reported last did something.
        self._active: dict[str, float] = {}
        self._active_at: dict[str, float] = {}
        self._is_running = False

    def __len__(self) -> int:
        """Number of users that sync here."""
        return len(self._users)

    @contextmanager
    def syncing(self, user_id: str, wanted: str | None) -> Iterator[None]:
        """A user syncs, as long as the block runs.

        :param wanted: the presence that the sync asks for; None: the user's presence does not change
        """
        tracked = None if wanted is None else self._track(user_id, wanted)
        if tracked is None:
            yield
            return
        tracked.under_way += 1
        try:
            yield
        finally:
            tracked.under_way -= 1
            tracked.ended_at = self._scheduler.seconds()

    def acts(self, user_id: str) -> None:
        """A user has done something."""
        if not self.is_served or len(self._active_at) >= MAX_TRACKED:
            return
        now = self._scheduler.seconds()
        if now >= self._active_at.get(user_id, -inf) + REPORT_ACTIVE_S:
            self._active_at[user_id] = self._active[user_id] = now
            self._start()
        elif user_id in self._active:
            self._active[user_id] = now

    def _track(self, user_id: str, wanted: str) -> _Tracked | None:
        if not self.is_served:
            return None
        tracked, now = self._users.get(user_id), self._scheduler.seconds()
        if tracked is None:
            if len(self._users) >= MAX_TRACKED:
                return None
            tracked = self._users[user_id] = _Tracked(wanted, now)
        tracked.wanted, tracked.began_at = wanted, now
        self._start()
        return tracked

    # -- reports --------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._is_running:
            self._is_running = True
            self._scheduler.spawn("report presence", self._run())

    async def _run(self) -> None:
        """Report until nobody syncs."""
        try:
            while self._users or self._active or self._active_at:
                await self._scheduler.sleep(REPORT_EVERY_S)
                await self._report()
        finally:
            self._is_running = False

    async def _report(self) -> None:
        now = self._scheduler.seconds()
        groups: dict[str, _Report] = defaultdict(_Report)
        for user_id, tracked in self._users.items():
            if not tracked.under_way and now >= tracked.ended_at + WITHOUT_SYNC_S:
                groups[self._presence.decided_by(user_id)].ceased.append(user_id)
            elif tracked.reported != tracked.wanted or now >= tracked.reported_at + REPEAT_S:
                report = ReportedSync(user_id, tracked.wanted, now - tracked.began_at)
                groups[self._presence.decided_by(user_id)].syncing.append(report)
        for user_id, at in self._active.items():
            active = ReportedActivity(user_id, now - at)
            groups[self._presence.decided_by(user_id)].active.append(active)
        self._active_at = {
            user_id: at for user_id, at in self._active_at.items() if now < at + REPORT_ACTIVE_S
        }
        for decided_by, group in groups.items():
            for part in group.parts():
                try:
                    await self._presence.report(decided_by, part.syncing, part.ceased, part.active)
                except SynreplError as error:
                    self._log.warn("presence cannot be reported: {error}", error=error)
                    break
                self._reported(part, now)

    def _reported(self, part: _Report, now: float) -> None:
        for user_id, wanted, _ in part.syncing:
            tracked = self._users.get(user_id)
            if tracked is not None:
                tracked.reported, tracked.reported_at = wanted, now
        for user_id, ago_s in part.active:
            if self._active[user_id] <= now - ago_s:
                del self._active[user_id]
        for user_id in part.ceased:
            tracked = self._users.get(user_id)
            if tracked is not None and not tracked.under_way:
                if now >= tracked.ended_at + WITHOUT_SYNC_S:
                    del self._users[user_id]
                else:  # the user synced meanwhile
                    tracked.reported = None


class _Report:
    """What is reported to one process."""

    def __init__(self) -> None:
        self.syncing: list[ReportedSync] = []
        self.ceased: list[str] = []
        self.active: list[ReportedActivity] = []

    def parts(self) -> Iterator[_Report]:
        """Reports of bounded size."""
        most = max(len(self.syncing), len(self.ceased), len(self.active))
        for start in range(0, most, REPORTED_AT_ONCE):
            part, end = _Report(), start + REPORTED_AT_ONCE
            part.syncing = self.syncing[start:end]
            part.ceased = self.ceased[start:end]
            part.active = self.active[start:end]
            yield part

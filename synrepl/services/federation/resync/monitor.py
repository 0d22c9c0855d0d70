"""Watches the completion of partial rooms, by all processes, and raises an alarm when it stands still."""

from __future__ import annotations

from typing import Any

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.storage.database import Database
from synrepl.storage.rooms.reading.partial_states import (
    ResyncFigures,
    progress_json,
    resync_figures,
)

#: Seconds between two looks.
LOOK_S = 10.0


class ResyncMonitor:
    """Looks at the jobs from time to time.

    :ivar figures: what was seen last
    """

    def __init__(self, scheduler: Scheduler, database: Database, log: Logger) -> None:
        self._scheduler = scheduler
        self._database = database
        self._log = log
        self.figures = ResyncFigures(0, 0, 0.0, 0, {}, (), {})
        self._warned: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Watch for as long as the process runs."""
        while True:
            try:
                await self.look()
            except SynreplError as error:
                self._log.warn("cannot look at partial rooms: {error}", error=error)
            await self._scheduler.sleep(LOOK_S)

    async def look(self) -> None:
        """Look once.

        :raises SynreplError: the errors of :meth:`.Database.run`
        """
        self.figures = await self._database.run(
            "look at partial rooms", resync_figures, read_only=True
        )
        still = {each.room_id: each for each in self.figures.shown if each.stands_still}
        for room_id in still.keys() - self._warned:
            self._log.warn(
                "{room} does not become complete: {progress}",
                room=room_id,
                progress=still[room_id].sentence,
            )
        self._warned = frozenset(still)

    def check(self) -> str | None:
        """A check for :class:`.readiness.Readiness`: rooms whose completion stands still."""
        found = self.figures
        if not found.standing_still:
            return None
        worst = max(found.shown, key=lambda each: each.idle_s)
        return (
            f"{found.standing_still} of {found.rooms} partial rooms do not become complete,"
            f" {worst.room_id} not since {worst.idle_s / 60:.0f} min: {worst.sentence}"
        )

    def status(self) -> dict[str, Any]:
        """The figures as JSON."""
        found = self.figures
        return {
            "rooms": found.rooms,
            "standing_still": found.standing_still,
            "oldest_s": found.oldest_s,
            "events": found.events,
            "attempts": dict(found.attempts),
            "shown": [
                progress_json(each, found.asked.get(each.room_id, ())) for each in found.shown
            ],
        }

"""Reads the rooms of users, those of many in one statement if many are asked for at once.

After a restart, thousands of clients come back at the same time, and none of their rooms are cached.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice

from synrepl.caches.load import Load
from synrepl.core.clock import Scheduler
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.storage.database import Database
from synrepl.storage.rooms.reading.rooms_of_user import RoomsOfUser, rooms_of_users

#: Users in one statement.
MAX_USERS = 500


class RoomsReader:
    """Reads the rooms of users as of what this process has applied.

    The first one who asks is answered at once; those who ask meanwhile share the next statement.
    """

    def __init__(self, scheduler: Scheduler, database: Database, applied: AppliedVectors) -> None:
        self._scheduler = scheduler
        self._database = database
        self._applied = applied
        self._asked: dict[str, Load] = {}
        self._is_reading = False

    async def rooms_of(self, user_ids: Collection[str]) -> Mapping[str, RoomsOfUser]:
        """The rooms of some users.

        :raises SynreplError: they cannot be read now
        """
        loads: dict[str, Load] = {}
        for user_id in user_ids:
            if user_id not in self._asked:
                self._asked[user_id] = Load(0)
            loads[user_id] = self._asked[user_id]
        if loads and not self._is_reading:
            self._is_reading = True
            self._scheduler.spawn("read rooms of users", self._read_all())
        return {
            user_id: await load.join(self._scheduler.promise()) for user_id, load in loads.items()
        }

    async def _read_all(self) -> None:
        try:
            while self._asked:
                loads = {
                    user_id: self._asked[user_id] for user_id in islice(self._asked, MAX_USERS)
                }
                for user_id in loads:
                    del self._asked[user_id]
                await self._read(loads)
        finally:
            self._is_reading = False

    async def _read(self, loads: dict[str, Load]) -> None:
        applied = self._applied.current().events
        users = list(loads)
        try:
            found = await self._database.run(
                "rooms of users", lambda txn: rooms_of_users(txn, users, applied), read_only=True
            )
        except BaseException as error:
            for load in loads.values():
                load.fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            for user_id, load in loads.items():
                load.succeed(found[user_id])

"""Users begin and cease to type.

The one process that writes the stream ``typing`` knows until when each user types; all others ask it. Nothing of it is
stored.

Source: https://spec.matrix.org/v1.16/client-server-api/#typing-notifications
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush
from typing import Any

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError, Unavailable
from synrepl.core.log import Logger
from synrepl.services.rooms.client_data.account_data import check_room
from synrepl.services.rooms.client_data.stream_writers import DataWriters, StreamNotServed
from synrepl.storage.clients.receipts import NotAMember, may_be_member
from synrepl.storage.database import Database, Transaction
from synrepl.storage.rooms.tables.numbers import require_room
from synrepl.streams.synapse.typing import TYPING, TypingRow

#: Seconds for which a user types: by default, and at most.
DEFAULT_TYPING_S, LONGEST_TYPING_S = 30.0, 120.0

#: Seconds between two looks whose time is over.
LOOK_EVERY_S = 1.0

#: Users that are told to type in one room; others are not told of. All IDs together fit into a line of the protocol.
MAX_TYPING = 50

#: Users that type, in all rooms, and ends of typing that are remembered.
MAX_TYPING_IN_ALL, MAX_ENDS = 100_000, 400_000

_ACTION = "set typing"


class TooManyType(Unavailable):
    """{most} users type already, which is the maximum of this process; try again later"""


class TypingService:
    """Takes what users say of their typing, and ends it when its time is over."""

    def __init__(
        self, scheduler: Scheduler, database: Database, writers: DataWriters, log: Logger
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._writers = writers
        self._log = log
        self._rooms: dict[str, OrderedDict[str, float]] = {}
        #: Ends of typing, some of which are void: the user ceased to type, or types on.
        self._ends: list[tuple[float, str, str]] = []
        self._typing = 0
        self._is_timed = False
        writers.add(_ACTION, TYPING, self._perform)

    async def set(
        self,
        user_id: str,
        room_id: str,
        is_typing: bool,
        timeout_s: float = DEFAULT_TYPING_S,
        *,
        is_foreign: bool = False,
    ) -> None:
        """Note that a member of a room types, or does not type any more.

        :param is_foreign: whether the user is of another server: then it may be a member of which a partial room does not
            know
        :param timeout_s: seconds after which the user does not type any more, at most :data:`LONGEST_TYPING_S`
        :raises BadAccountDataName: :raises UnknownRoom: :raises NotAMember: :raises TooManyType:
        :raises SynreplError: the errors of :meth:`.DataWriters.run`
        """
        check_room(room_id)
        if not self._writers.serves(TYPING):
            raise StreamNotServed(stream=TYPING.name)
        await self._database.run(
            "look at a member",
            lambda txn: _check_member(txn, room_id, user_id, is_foreign=is_foreign),
            read_only=True,
        )
        timeout = min(timeout_s, LONGEST_TYPING_S) if is_typing else 0.0
        argument = {"user_id": user_id, "room_id": room_id, "timeout_s": timeout}
        await self._writers.run(_ACTION, room_id, argument)

    # -- in the process that writes ---------------------------------------------------------

    async def _perform(self, argument: dict[str, Any]) -> None:
        """Note that a user types for some time, or for none."""
        user_id, room_id, timeout_s = (
            argument["user_id"],
            argument["room_id"],
            argument["timeout_s"],
        )
        self._writers.required(TYPING)
        users = self._rooms.get(room_id, OrderedDict())
        if timeout_s <= 0:
            if users.pop(user_id, None) is None:
                return
            self._typing -= 1
            if not users:
                del self._rooms[room_id]
        else:
            is_new = user_id not in users
            if (is_new and self._typing >= MAX_TYPING_IN_ALL) or len(self._ends) >= MAX_ENDS:
                raise TooManyType(most=MAX_TYPING_IN_ALL)
            self._rooms[room_id] = users
            users[user_id] = end = self._scheduler.seconds() + timeout_s
            heappush(self._ends, (end, room_id, user_id))
            self._time()
            if not is_new:
                return
            self._typing += 1
        await self._tell(room_id)

    async def _tell(self, room_id: str) -> None:
        """Append who types in a room now."""
        users = list(self._rooms.get(room_id, ()))[:MAX_TYPING]
        await self._writers.required(TYPING).append(TYPING, [[TypingRow(room_id, users)]])

    def _time(self) -> None:
        """Look when typing ends, as long as anybody types."""
        if not self._is_timed:
            self._is_timed = True
            self._scheduler.spawn("end typing", self._run())

    async def _run(self) -> None:
        try:
            while self._ends:
                left = self._ends[0][0] - self._scheduler.seconds()
                await self._scheduler.sleep(min(max(0.0, left), LOOK_EVERY_S))
                for room_id in self._ended():
                    await self._tell_end(room_id)
        finally:
            self._is_timed = False

    def _ended(self) -> list[str]:
        """Rooms where the time of users is over."""
        now = self._scheduler.seconds()
        ended: dict[str, None] = {}
        while self._ends and self._ends[0][0] <= now:
            end, room_id, user_id = heappop(self._ends)
            users = self._rooms.get(room_id)
            if users is not None and users.get(user_id) == end:
                del users[user_id]
                self._typing -= 1
                ended[room_id] = None
                if not users:
                    del self._rooms[room_id]
        return list(ended)

    async def _tell_end(self, room_id: str) -> None:
        try:
            await self._tell(room_id)
        except SynreplError as error:
            self._log.warn("cannot tell that users do not type any more: {error}", error=error)


def _check_member(txn: Transaction, room_id: str, user_id: str, *, is_foreign: bool) -> None:
    room = require_room(txn, room_id)
    txn.execute(
        "SELECT FROM synrepl._memberships WHERE room_no = %s AND user_id = %s AND membership = 'join'",
        (room.room_no, user_id),
    )
    if txn.fetchone_or_none() is not None:
        return
    if not is_foreign or not may_be_member(txn, room.room_no, user_id):
        raise NotAMember(user_id=user_id, room_id=room_id)

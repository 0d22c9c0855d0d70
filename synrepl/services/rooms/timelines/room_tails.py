"""Tails of rooms, shared by the syncs that an event wakes.

An event in a room with a thousand syncs is read once. A tail is dropped when its room changes, so that whoever has
heard of a change, and then asks, gets it; and after a second, since nobody else will ask, and ages of events are in it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping

from synrepl.caches.load import Load
from synrepl.core.clock import Scheduler
from synrepl.core.tokens import Token
from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.news.recent_changes import ChangeKind
from synrepl.services.rooms.timelines.room_tail import RoomTail
from synrepl.storage.database import Database, Isolation, Transaction
from synrepl.storage.rooms.timelines.stored_tails import read_tails

#: Bytes of memory that all tails may take, and seconds for which one is used.
MAX_BYTES = 32 * 2**20
MAX_AGE_S = 1.0


class RoomTails:
    """Reads tails of rooms, each once for all who ask at the same time; a :class:`~.news_feed.ChangeListener`.

    It has to hear of changes before those do who then ask.
    """

    def __init__(
        self, scheduler: Scheduler, database: Database, max_bytes: int = MAX_BYTES
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._max_bytes = max_bytes
        #: With the time at which it was read, those first that were read first.
        self._tails: OrderedDict[str, tuple[float, RoomTail]] = OrderedDict()
        self._bytes = 0
        #: With the vector since which it is read.
        self._loads: dict[str, tuple[PositionVector, Load]] = {}

    @property
    def bytes_used(self) -> int:
        """Bytes of memory that the tails take, about."""
        return self._bytes

    async def tails_of(
        self, room_ids: Collection[str], since: PositionVector
    ) -> Mapping[str, RoomTail]:
        """The tails of rooms, which have everything of them that this process has applied.

        Rooms that are not in the store are left out. A tail may not reach back to ``since``.

        :raises SynreplError: they cannot be read now
        """
        found: dict[str, RoomTail] = {}
        loads: dict[Load, None] = {}
        missing: list[str] = []
        self._drop_old()
        for room_id in room_ids:
            kept = self._tails.get(room_id)
            if kept is not None and kept[1].reaches(since):
                found[room_id] = kept[1]
                continue
            begun = self._loads.get(room_id)
            if begun is not None and since.covers(begun[0]):
                loads[begun[1]] = None
            else:
                missing.append(room_id)
        if missing:
            loads[self._begin(missing, since)] = None
        for load in loads:
            read: Mapping[str, RoomTail] = await load.join(self._scheduler.promise())
            found |= {room_id: read[room_id] for room_id in room_ids if room_id in read}
        return found

    def _begin(self, room_ids: Collection[str], since: PositionVector) -> Load:
        """Begin to read rooms, in a task of its own: others may wait for it, too."""
        load = Load(0)
        for room_id in room_ids:
            self._loads[room_id] = since, load
        self._scheduler.spawn("read tails of rooms", self._load(room_ids, since, load))
        return load

    async def _load(self, room_ids: Collection[str], since: PositionVector, load: Load) -> None:
        now = self._scheduler.seconds()
        now_ms = int(now * 1000)

        def work(txn: Transaction) -> dict[str, RoomTail]:
            stored = read_tails(txn, room_ids, since)
            return {each.room_id: RoomTail(each, now_ms) for each in stored}

        try:
            tails = await self._database.run(
                "tails of rooms", work, read_only=True, isolation=Isolation.REPEATABLE_READ
            )
        except BaseException as error:
            self._end(room_ids, load, {}, now)
            load.fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            self._end(room_ids, load, tails, now)
            load.succeed(tails)

    def _end(
        self, room_ids: Collection[str], load: Load, tails: Mapping[str, RoomTail], now: float
    ) -> None:
        """Keep those tails whose rooms have not changed meanwhile."""
        for room_id in room_ids:
            begun = self._loads.get(room_id)
            if begun is not None and begun[1] is load:
                del self._loads[room_id]
                if room_id in tails:
                    self._drop(room_id)
                    self._tails[room_id] = now, tails[room_id]
                    self._bytes += tails[room_id].size
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._tails)))

    def _drop_old(self) -> None:
        oldest = self._scheduler.seconds() - MAX_AGE_S
        while self._tails:
            room_id, (read_at, _) = next(iter(self._tails.items()))
            if read_at >= oldest:
                return
            self._drop(room_id)

    def _drop(self, room_id: str) -> None:
        kept = self._tails.pop(room_id, None)
        if kept is not None:
            self._bytes -= kept[1].size

    # -- changes ----------------------------------------------------------------------

    def changed(self, kind: ChangeKind, writer: str, token: Token, entity: str | None) -> None:
        """Drop what was read of a room before it changed."""
        if kind.stream != "events":
            return
        if entity is None:
            self._drop_all()
        elif kind is ChangeKind.ROOM:
            self._drop(entity)
            self._loads.pop(entity, None)

    def unknown_upto(self, stream: str, writer: str, token: Token) -> None:
        """Drop everything: any room may have changed."""
        if stream == "events":
            self._drop_all()

    def _drop_all(self) -> None:
        self._tails.clear()
        self._loads.clear()
        self._bytes = 0

"""Stores rooms that are joined with their whole state, from an answer that is read in parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from synrepl.core.errors import SynreplError
from synrepl.rooms import Event, IncompleteAnswer, OtherRoom
from synrepl.services.federation.partial_joins import PersistedJoin
from synrepl.services.federation.storing_outliers import FetchedOutliers
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.services.rooms.persister import RoomPersister
from synrepl.storage.database import Database, Transaction
from synrepl.storage.rooms.partial.full_joins import (
    FullJoinRun,
    answered_stored,
    begin_full_join,
    end_full_join,
    fault_of_answer,
    has_only_outliers,
    is_unfinished,
    keep_answered,
    list_answered,
    require_full_join,
    unfinished_joins,
)
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.tables.incoming import check_storable
from synrepl.storage.rooms.tables.numbers import lock_room


class AnsweredEvents(NamedTuple):
    """A part of the answer to a join: events that have passed checks 1 to 3.

    :ivar state: of the state before the join
    :ivar auth_chain: of its auth chain
    """

    state: Sequence[Event] = ()
    auth_chain: Sequence[Event] = ()


class FullJoins:
    """Persists the answers to joins with the whole state of a room. Memory goes with a part of the answer.

    :param persister: of the process that the room is assigned to
    :param server_name: of this server
    :param joined: called after a join of a room that is partial, so that its completion begins at once
    """

    def __init__(
        self,
        database: Database,
        persister: RoomPersister,
        instance: str,
        server_name: str,
        joined: Callable[[], object],
    ) -> None:
        self._joined = joined
        self._database = database
        self._persister = persister
        self._instance = instance
        self._server_name = server_name

    async def persist(
        self, join: Event, answer: AsyncIterator[AnsweredEvents], joined_via: str
    ) -> PersistedJoin:
        """Persist a join and the state that came with it.

        Nobody sees anything of the room before the join is stored. What is left of a join that fails is removed, at once,
        or, if the process ends, by :meth:`remove_unfinished`.

        :param answer: of some hundred events each, in any order
        :param joined_via: the server that answered
        :raises IncompleteAnswer: the answer lacks essential state, or contradicts itself
        :raises JoinRejected: the rules do not allow the join
        :raises JoinUnderWay: another process is joining the room
        :raises SynreplError: the errors of reading the answer, and of :meth:`.RoomPersister.run`
        """
        room_id, version = join.room_id, join.version.name
        owner = f"{self._instance} {uuid4()}"
        room_no = await self._database.run(
            f"begin to join {room_id}", lambda txn: begin_full_join(txn, room_id, version, owner)
        )
        try:
            return await self._persist(room_no, owner, join, answer, joined_via)
        except SynreplError:
            with suppress(SynreplError):  # it is removed later
                await self._remove(room_no, room_id, owner)
            raise

    async def _persist(
        self,
        room_no: int,
        owner: str,
        join: Event,
        answer: AsyncIterator[AnsweredEvents],
        joined_via: str,
    ) -> PersistedJoin:
        room_id, run = join.room_id, self._database.run

        def record(txn: Transaction, ids: Collection[str], cited: Collection[str]) -> None:
            require_full_join(txn, room_no, room_id, owner)
            answered_stored(txn, room_no, ids)

        outliers = FetchedOutliers(
            self._database, self._persister, room_no, room_id, join.version.name, record
        )
        waiting: list[Event] = []
        async for part in answer:
            work = partial(self._keep, room_no, owner, join, part, waiting)
            await run(f"answer to a join of {room_id}", work)
            waiting = await outliers.store_arrived([*part.state, *part.auth_chain])
        work = partial(self._keep, room_no, owner, join, AnsweredEvents(), waiting)
        await run(f"answer to a join of {room_id}", work)
        fault = await run(
            f"check the answer to a join of {room_id}", lambda txn: fault_of_answer(txn, room_no)
        )
        if fault is None:
            fault = (await outliers.store()).fault
        if fault is not None:
            raise IncompleteAnswer(room_id=room_id, reason=f"is of no use: {fault}")
        done, last = await self._persister.run(
            room_id,
            len(join.raw),
            ROOM_STREAMS,
            lambda *context: FullJoinRun(join, owner, joined_via, *context),
        )
        if last.is_partial:
            self._joined()
        return PersistedJoin(done.events[-1], last.is_partial)

    @staticmethod
    def _keep(
        room_no: int,
        owner: str,
        join: Event,
        part: AnsweredEvents,
        waiting: Sequence[Event],
        txn: Transaction,
    ) -> None:
        """List what has come, and keep what came before and could not be stored."""
        require_full_join(txn, room_no, join.room_id, owner)
        for each in (*part.state, *part.auth_chain):
            check_storable(each)
            if each.room_id != join.room_id:
                raise OtherRoom(event_id=each.event_id, room_id=each.room_id, expected=join.room_id)
        list_answered(txn, room_no, part.state, part.auth_chain)
        keep_answered(txn, room_no, waiting)

    async def _remove(self, room_no: int, room_id: str, owner: str | None) -> None:
        """Remove what is left of a join that failed."""

        def work(txn: Transaction) -> bool:
            lock_room(txn, room_no)
            if owner is not None:
                require_full_join(txn, room_no, room_id, owner)
            elif not is_unfinished(txn, room_no):
                return False
            end_full_join(txn, room_no)
            return has_only_outliers(txn, room_no)

        if await self._database.run(f"end the join of {room_id}", work):
            await RoomMaintenance(self._database).forget(room_id, self._server_name, force=True)

    async def remove_unfinished(self) -> None:
        """Remove what joins left that were interrupted, of any process."""
        for room_no, room_id in await self._database.run(
            "unfinished joins", unfinished_joins, read_only=True
        ):
            await self._remove(room_no, room_id, None)

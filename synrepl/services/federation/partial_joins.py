"""Stores rooms that are joined with partial state."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from synrepl.rooms import PartialJoin
from synrepl.services.rooms.persister import RoomPersister
from synrepl.storage.rooms.partial.join_run import PartialJoinAnswer, PartialJoinRun
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.tables.incoming import PersistedEvent


class PersistedJoin(NamedTuple):
    """A join that is stored.

    :ivar event: the join
    :ivar is_partial: whether the room is completed in the background
    """

    event: PersistedEvent
    is_partial: bool


class PartialJoins:
    """Persists the answers to partial joins: each in one transaction, all or nothing.

    :param persister: of the process that the room is assigned to
    :param joined: called after a room has become partial, so that its completion begins at once
    """

    def __init__(self, persister: RoomPersister, joined: Callable[[], object]) -> None:
        self._persister = persister
        self._joined = joined

    async def persist(
        self, answer: PartialJoin, joined_via: str, device_lists_stream_id: int = 0
    ) -> PersistedJoin:
        """Persist the answer to the first join of a room, or to a further one while it is partial.

        The events of the answer must have passed checks 1 to 3. They are judged here, and stored only if the
        join is allowed by them. Persisting the same answer again is harmless.

        If the room has its full state already and the join follows what is here, the join is judged by that.

        :param joined_via: the server that answered
        :param device_lists_stream_id: the position of ``device_lists`` before the join was sent
        :raises IncompleteAnswer: the answer lacks essential state, contradicts itself, or names no servers
        :raises JoinRejected: the rules do not allow the join
        :raises OtherRoom: :raises UnknownEvents: an event is of another room, or cites what did not come with it
        :raises SynreplError: the errors of :meth:`.RoomPersister.run`; after ``CommitUnknown``, persist it again
        """
        given = PartialJoinAnswer(
            answer._replace(state=list(answer.state), auth_chain=list(answer.auth_chain)),
            joined_via,
            device_lists_stream_id,
        )
        size = sum(len(each.raw) for each in (*given.join.state, *given.join.auth_chain))
        done, run = await self._persister.run(
            answer.join.room_id,
            size,
            ROOM_STREAMS,
            lambda *context: PartialJoinRun(given, *context),
        )
        if run.is_partial:
            self._joined()
        return PersistedJoin(done.events[-1], run.is_partial)

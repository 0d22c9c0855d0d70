"""Joins rooms of other servers: one server after the other is asked, until one lets the user in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.keyed_semaphores import KeyedSemaphores
from synrepl.core.log import Logger
from synrepl.services.federation.joining.candidates import candidates
from synrepl.services.federation.joining.errors import (
    OWN_FAULTS,
    SERVER_FAULTS,
    NoServerToAsk,
    ServerOutcome,
    failure_of,
    outcome_of,
)
from synrepl.services.federation.joining.handshake import JoinHandshake
from synrepl.services.federation.joining.own_membership import AskedMembership
from synrepl.services.federation.joining.progress import JoinPhase, JoinProgress
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.membership_facts import MembershipFacts, membership_facts
from synrepl.storage.rooms.persisting.send_run import EventNotAllowed
from synrepl.storage.rooms.tables.sent_events import SentEvent

#: Seconds in which servers are asked.
ASK_S = 40.0

#: Joins of a user in a room that this server can judge: user, room and content of the event.
JoinsLocally = Callable[[str, str, Mapping[str, Any]], Awaitable[SentEvent | None]]


class JoinRequest(NamedTuple):
    """A join that a user asks for.

    :ivar content: members of the event, such as ``reason``
    :ivar via: servers that the user names
    :ivar found: servers that were found with the alias of the room
    :ivar whole: the whole state of the room is wanted at once
    """

    room_id: str
    user_id: str
    content: Mapping[str, Any]
    via: Sequence[str] = ()
    found: Sequence[str] = ()
    whole: bool = False


class JoinedRoomResult(NamedTuple):
    """A room that was joined.

    :ivar sent: the join; None if the user was in the room already
    :ivar is_partial: the room is completed in the background
    """

    room_id: str
    sent: SentEvent | None
    is_partial: bool


class RoomJoiner:
    """Joins rooms, in the process that persists them; one user at a time into each room.

    :param locally: joins a room that this server can judge
    :param instance: this process
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        handshake: JoinHandshake,
        locally: JoinsLocally,
        instance: str,
        server_name: str,
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._handshake = handshake
        self._locally = locally
        self._instance = instance
        self._server_name = server_name
        self._log = log
        self._rooms: KeyedSemaphores[str] = KeyedSemaphores(scheduler, 1)

    async def join(self, asked: JoinRequest, progress: JoinProgress) -> JoinedRoomResult:
        """Join a room.

        Where this server has the full state of the room, it decides itself, unless the room is restricted and others must
        let the user in. In a room with partial state the join is another handshake, since only others know whether it
        holds.

        :raises NoServerToAsk: :raises RoomNotAtServers: :raises RefusedByServers: :raises RoomVersionNotSpoken:
        :raises ServersDidNotHelp: :raises JoinUnderWay:
        :raises SynreplError: the errors of storing the room
        """
        with self._rooms.entered(asked.room_id) as turn:
            async with turn:
                done = await self._join(asked, progress)
        progress.phase = JoinPhase.DONE
        return done

    async def _join(self, asked: JoinRequest, progress: JoinProgress) -> JoinedRoomResult:
        room_id = asked.room_id
        facts = await self._facts(asked)
        if facts.is_ours and facts.membership == "join":
            return JoinedRoomResult(room_id, None, facts.is_partial)
        servers = candidates(room_id, asked.via, asked.found, facts, self._server_name)
        if facts.is_local:
            try:
                sent = await self._locally(asked.user_id, room_id, asked.content)
            except EventNotAllowed:
                if not facts.is_restricted or not servers:
                    raise
            else:
                return JoinedRoomResult(room_id, sent, False)
        if not servers:
            raise NoServerToAsk(room_id=room_id)
        return await self._by_any(asked, servers, progress)

    async def _facts(self, asked: JoinRequest) -> MembershipFacts:
        def work(txn: Transaction) -> MembershipFacts:
            return membership_facts(txn, asked.room_id, asked.user_id, self._server_name)

        return await self._database.run("look at a join", work, read_only=True)

    async def _by_any(
        self, asked: JoinRequest, servers: Sequence[str], progress: JoinProgress
    ) -> JoinedRoomResult:
        until = self._scheduler.seconds() + ASK_S
        outcomes: list[ServerOutcome] = []
        wanted = AskedMembership(asked.room_id, asked.user_id, asked.content)
        for server in servers:
            if self._scheduler.seconds() >= until:
                outcomes.append(ServerOutcome(server, 0, "", "it was not asked: time was over"))
                continue
            try:
                done = await self._handshake.join(
                    server, wanted, progress, until, whole=asked.whole
                )
            except OWN_FAULTS:
                raise
            except SERVER_FAULTS as error:
                self._failed(asked.room_id, server, error)
                outcomes.append(outcome_of(server, error))
                progress.tried += 1
                continue
            event = done.event
            sent = SentEvent(event.event_id, event.stream_id, self._instance)
            return JoinedRoomResult(asked.room_id, sent, done.is_partial)
        raise failure_of(asked.room_id, outcomes)

    def _failed(self, room_id: str, server: str, error: SynreplError) -> None:
        self._log.info(
            "{room_id} is not joined by {server}: {error}",
            room_id=room_id,
            server=server,
            error=error,
        )

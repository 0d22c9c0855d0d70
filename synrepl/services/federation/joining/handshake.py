"""Joins a room by one server: asks where the join goes, sends it, checks the answer, and stores it.

Unless the whole state is wanted, the server is asked for a part of it first, which is enough to take part in the room at once.
Source: seed "How do faster joins work?", "Overview" and "Joining after a partial join".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

from synrepl.core.clock import Scheduler
from synrepl.core.log import Logger
from synrepl.core.semaphore import Semaphore
from synrepl.federation.answers import SendJoinAnswer
from synrepl.federation.errors import BadFederationAnswer, RequestRefusedByServer
from synrepl.rooms import Event, IncompleteAnswer, PartialJoin, ReceiptVerdict, UnknownEvents
from synrepl.services.federation.answered_parts import causes_first, in_parts
from synrepl.services.federation.client import LARGE_S, FederationClient
from synrepl.services.federation.full_joins import AnsweredEvents, FullJoins
from synrepl.services.federation.joining.own_membership import (
    AskedMembership,
    BadTemplate,
    MembershipMaker,
    authorising_server,
)
from synrepl.services.federation.joining.progress import JoinPhase, JoinProgress
from synrepl.services.federation.partial_joins import PartialJoins, PersistedJoin
from synrepl.services.federation.verifying import EventVerifier
from synrepl.storage.database import CommitUnknown, Database
from synrepl.storage.federation.membership_facts import newest_device_list

T = TypeVar("T")

#: Events that are verified at a time.
VERIFIED = 500

#: Seconds that one server has for the template, and for a join with a part of the state.
TEMPLATE_S, PARTIAL_S = 15.0, 30.0

#: Bytes of the events of a partial answer, which are in memory until they are stored.
MAX_PARTIAL_BYTES = 64 * 2**20

#: Partial answers that are in memory at the same time.
MAX_ANSWERS = 4

#: How often an answer is stored whose commit nobody can tell.
_ATTEMPTS = 3


class JoinHandshake:
    """Joins rooms by servers.

    :param partial_joins: stores joins with a part of the state
    :param full_joins: stores joins with the whole state
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        client: FederationClient,
        verifier: EventVerifier,
        maker: MembershipMaker,
        partial_joins: PartialJoins,
        full_joins: FullJoins,
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._client = client
        self._verifier = verifier
        self._maker = maker
        self._partial_joins = partial_joins
        self._full_joins = full_joins
        self._log = log
        self._answers = Semaphore(scheduler, MAX_ANSWERS)

    async def join(
        self,
        server: str,
        asked: AskedMembership,
        progress: JoinProgress,
        until: float,
        *,
        whole: bool = False,
    ) -> PersistedJoin:
        """Join a room by a server; if it fails, nothing of it is left here.

        :param until: time by which the server must have begun to answer
        :param whole: ask for the whole state at once
        :raises SynreplError: the errors of :class:`.FederationClient`, of :class:`.PartialJoins` and :class:`.FullJoins`
        :raises BadTemplate: :raises UnknownRoomVersion: :raises BadEvent: :raises NoCanonicalJson:
        """
        progress.at(JoinPhase.ASKING, server)
        template = await self._client.make_membership(
            server,
            "join",
            asked.room_id,
            asked.user_id,
            self._maker.versions,
            self._left(until, TEMPLATE_S),
        )
        now_ms = int(self._scheduler.seconds() * 1000)
        join = self._maker.made(asked, "join", template, now_ms)
        # Who authorises a restricted join must sign it.
        asked_server = authorising_server(join) or server
        if whole:
            return await self._fully(asked_server, join, progress, until)
        try:
            return await self._partially(asked_server, join, progress, until)
        except RequestRefusedByServer as error:
            if error.status != 400 or error.errcode not in ("M_INVALID_PARAM", "M_UNRECOGNIZED"):
                raise
            self._log.info("{server} leaves out no members: {error}", server=server, error=error)
        except (IncompleteAnswer, UnknownEvents) as error:
            self._log.info("{server} leaves out too much: {error}", server=server, error=error)
        return await self._fully(asked_server, join, progress, until)

    async def _partially(
        self, server: str, join: Event, progress: JoinProgress, until: float
    ) -> PersistedJoin:
        position = await self._database.run(
            "position of device lists", newest_device_list, read_only=True
        )
        progress.at(JoinPhase.SENDING, server)
        limit = self._left(until, PARTIAL_S)
        with await self._client.send_join(
            server, join, omit_members=True, timeout_s=limit, head_timeout_s=limit
        ) as answer:
            progress.at(JoinPhase.CHECKING, server)
            join = await self._signed(server, join, answer)
            if not answer.members_omitted:
                return await self._store_whole(server, join, answer, progress)
            async with self._answers:
                return await self._store_part(server, join, answer, progress, position)

    async def _store_part(
        self,
        server: str,
        join: Event,
        answer: SendJoinAnswer,
        progress: JoinProgress,
        position: int,
    ) -> PersistedJoin:
        state, chain = [
            await self._verified(server, join, _bounded(server, join, raws), progress)
            for raws in (answer.state(), answer.auth_chain())
        ]
        progress.at(JoinPhase.STORING, server)
        given = PartialJoin(join, state, chain, frozenset(answer.servers_in_room or ()))
        return await self._certainly(lambda: self._partial_joins.persist(given, server, position))

    async def _fully(
        self, server: str, join: Event, progress: JoinProgress, until: float
    ) -> PersistedJoin:
        progress.at(JoinPhase.SENDING, server)
        progress.events = 0
        limit = self._left(until, PARTIAL_S)
        with await self._client.send_join(
            server, join, omit_members=False, timeout_s=LARGE_S, head_timeout_s=limit
        ) as answer:
            join = await self._signed(server, join, answer)
            return await self._store_whole(server, join, answer, progress)

    async def _store_whole(
        self, server: str, join: Event, answer: SendJoinAnswer, progress: JoinProgress
    ) -> PersistedJoin:
        progress.at(JoinPhase.STORING, server)
        return await self._full_joins.persist(
            join, self._parts(server, join, answer, progress), server
        )

    async def _parts(
        self, server: str, join: Event, answer: SendJoinAnswer, progress: JoinProgress
    ) -> AsyncIterator[AnsweredEvents]:
        for part in causes_first(answer, VERIFIED):
            found = await self._verified(server, join, iter(part.raws), progress)
            yield AnsweredEvents(found) if part.is_state else AnsweredEvents((), found)

    async def _verified(
        self, server: str, join: Event, raws: Iterator[bytes], progress: JoinProgress
    ) -> list[Event]:
        """Those of some events that pass checks 1 to 3."""
        found: list[Event] = []
        for part in in_parts(raws, VERIFIED):
            results = await self._verifier.verify(part, join.version, origin=server)
            passed = [each.event for each in results if each.event is not None]
            for each in passed:
                _check_version(server, each)
            found += passed
            progress.events += len(part)
        return found

    async def _signed(self, server: str, join: Event, answer: SendJoinAnswer) -> Event:
        """The join with the signatures that it needs.

        :raises BadTemplate: who authorises it has not signed it
        """
        authorising = authorising_server(join)
        if authorising is None:
            return join
        signed = self._maker.with_signature_of(authorising, join, answer.event)
        (result,) = await self._verifier.verify([signed.raw], signed.version, origin=server)
        if result.verdict is not ReceiptVerdict.ACCEPT:
            reason = "" if result.refusal is None else f": {result.refusal.sentence}"
            raise BadTemplate(reason=f"{server} has not signed the join that it authorises{reason}")
        return signed

    async def _certainly(self, persist: Callable[[], Awaitable[T]]) -> T:
        """Persist, again if it is not known whether it was done."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return await persist()
            except CommitUnknown as error:
                self._log.warn("a join is stored again: {error}", error=error)
        return await persist()

    def _left(self, until: float, most: float) -> float:
        """The seconds that a request may take."""
        return max(1.0, min(most, until - self._scheduler.seconds()))


def _bounded(server: str, join: Event, raws: Iterator[bytes]) -> Iterator[bytes]:
    """Events of an answer that is kept in memory.

    :raises BadFederationAnswer: they are too much
    """
    size = 0
    for raw in raws:
        size += len(raw)
        if size > MAX_PARTIAL_BYTES:
            raise BadFederationAnswer(
                destination=server,
                subject=f"the join of {join.room_id}",
                reason=f"its part of the state has more than {MAX_PARTIAL_BYTES} bytes",
            )
        yield raw


def _check_version(server: str, event: Event) -> None:
    """Check that the room has the version that its server says.

    :raises BadTemplate:
    """
    if event.type == "m.room.create" and event.state_key == "":
        version = event.content.get("room_version", "1")
        if version != event.version.name:
            said = event.version.name
            raise BadTemplate(
                reason=f"{server} says version {said}, and the room has {version!s:.50}"
            )

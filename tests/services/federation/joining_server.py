"""The product's store as a server among servers of pure rooms: it joins rooms partially, and completes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError

from simulator.federation.in_memory import InMemoryFederation
from simulator.federation.server_keys import SimulatedKeys
from synrepl.core.clock import Scheduler
from synrepl.core.log import Logger
from synrepl.federation.answers import SendJoinAnswer
from synrepl.federation.requests import BytesBody, FederationAnswer, FederationRequest
from synrepl.rooms import (
    Event,
    Keys,
    PartialJoin,
    event_of,
    parse_event,
    room_version,
    sign_event,
)
from synrepl.services.federation.answered_parts import in_parts
from synrepl.services.federation.client import FederationClient
from synrepl.services.federation.full_joins import AnsweredEvents, FullJoins
from synrepl.services.federation.partial_joins import PartialJoins, PersistedJoin
from synrepl.services.federation.resync.pushing import JoinPusher
from synrepl.services.federation.resync.room_resync import ResyncParts
from synrepl.services.federation.resync.worker import ResyncWorker
from synrepl.services.federation.verifying import EventVerifier
from synrepl.services.rooms.persister import RoomPersister
from synrepl.storage.database import Database
from synrepl.storage.rooms.persisting.limits import DEFAULT_LIMITS

T = TypeVar("T")

#: The name of the server, and one of its users.
HERE, US = "here", "@us:here"


class KnownKeys:
    """The keys of simulated servers, all of which are known."""

    def __init__(self, keys: SimulatedKeys) -> None:
        self._keys = keys

    async def known(self, servers: Collection[str]) -> Keys:
        return {each: self._keys[each] for each in servers}

    async def for_events(self, wanted: Mapping[str, Mapping[str, int]]) -> Keys:
        return await self.known(wanted)


class NoThreads:
    """Does the work of threads at once."""

    concurrency = 1

    async def run(self, work: Callable[[], T]) -> T:
        return work()


class JoiningServer:
    """A process of the product, in a federation.

    :ivar client: asks other servers
    :ivar worker: completes rooms; it does nothing before it is told to
    """

    def __init__(
        self,
        federation: InMemoryFederation,
        scheduler: Scheduler,
        database: Database,
        persister: RoomPersister,
        log: Logger,
        instance: str = "one",
        writers: Sequence[str] = ("one",),
        server_name: str = HERE,
    ) -> None:
        self.name = server_name
        self.federation = federation
        self.client = FederationClient(federation.transport(server_name), server_name)
        self.verifier = EventVerifier(scheduler, KnownKeys(federation.keys), NoThreads(), log)
        self.persister = persister
        self.joins = PartialJoins(persister, self._joined)
        self.full_joins = FullJoins(database, persister, instance, server_name, self._joined)
        self.parts = ResyncParts(
            scheduler=scheduler,
            database=database,
            persister=persister,
            client=self.client,
            verifier=self.verifier,
            pusher=JoinPusher(scheduler, database, self.client),
            server_name=server_name,
            limits=DEFAULT_LIMITS,
            log=log,
        )
        self.worker = ResyncWorker(self.parts, instance, writers)
        self.joined = 0
        #: The transactions that it received.
        self.received: list[Mapping[str, Any]] = []
        federation.register(server_name, self)

    def _joined(self) -> None:
        self.joined += 1

    async def handle(self, origin: str, request: FederationRequest) -> FederationAnswer | None:
        """It has nothing for anybody, but takes what it is sent."""
        if "/send/" in request.path:
            return FederationAnswer(200, BytesBody(b'{"pdus":{}}'))
        return FederationAnswer(404, BytesBody(b'{"errcode":"M_NOT_FOUND","error":"not here"}'))

    async def handshake(self, room_id: str, via: str, user_id: str = US) -> PartialJoin:
        """Join a room by another server; returns its answer, verified."""
        versions = [str(number) for number in range(1, 13)]
        template = await self.client.make_membership(via, "join", room_id, user_id, versions)
        join = self._signed(template.room_version, template.event)
        with await self.client.send_join(via, join, omit_members=True) as answer:
            version = join.version
            raws = [*answer.state()], [*answer.auth_chain()]
            state, chain = [await self._verified(each, version.name, via) for each in raws]
            if answer.event is not None:
                join = parse_event(answer.event, version)
            return PartialJoin(join, state, chain, frozenset(answer.servers_in_room or ()))

    def _signed(self, version: str, template: dict[str, Any]) -> Event:
        made = room_version(version)
        fields = template | {"origin_server_ts": 1_000_000_000_000}
        if made.name in ("1", "2"):
            fields["event_id"] = f"$join-{len(self.federation.requests)}:{self.name}"
        key = self.federation.keys.signing_key(self.name)
        return event_of(sign_event(fields, made, self.name, key), made)

    async def _verified(self, raws: Sequence[bytes], version: str, via: str) -> list[Event]:
        results = await self.verifier.verify(raws, room_version(version), origin=via)
        return [each.event for each in results if each.event is not None]

    async def join_fully(
        self,
        room_id: str,
        via: str,
        user_id: str = US,
        *,
        ends_within: bool = False,
        after: Callable[[AnsweredEvents], object] = lambda part: None,
    ) -> PersistedJoin:
        """Join a room with its whole state.

        :param ends_within: the process ends when the state is there, and the auth chain is not
        :param after: called with each part of the answer once the next one is wanted
        """
        versions = [str(number) for number in range(1, 13)]
        template = await self.client.make_membership(via, "join", room_id, user_id, versions)
        join = self._signed(template.room_version, template.event)
        with await self.client.send_join(via, join, omit_members=False) as answer:
            return await self.full_joins.persist(
                join, self._parts_of(answer, join, via, ends_within, after), via
            )

    async def _parts_of(
        self,
        answer: SendJoinAnswer,
        join: Event,
        via: str,
        ends_within: bool,
        after: Callable[[AnsweredEvents], object],
    ) -> AsyncIterator[AnsweredEvents]:
        version = join.version.name
        for raws in in_parts(answer.state(), 7):
            part = AnsweredEvents(state=await self._verified(raws, version, via))
            yield part
            after(part)
        if ends_within:
            raise CancelledError
        for raws in in_parts(answer.auth_chain(), 7):
            yield AnsweredEvents(auth_chain=await self._verified(raws, version, via))

    async def join(self, room_id: str, via: str, user_id: str = US) -> PersistedJoin:
        """Join a room partially."""
        return await self.joins.persist(await self.handshake(room_id, via, user_id), via)

    async def complete(self) -> None:
        """Work on what there is to complete until there is nothing that can be done now."""
        await self.worker.look()
        while self.worker.rooms:
            await self.parts.scheduler.sleep(0.01)

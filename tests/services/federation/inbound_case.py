"""A process of this server with what takes in events of others, among servers of rooms in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from simulator.federation.hosted_room import HostedRoom
from simulator.federation.in_memory import InMemoryFederation
from simulator.federation.pure_server import PureServer
from synrepl.rooms import Event, Keys, StateKey
from synrepl.services.federation.client import FederationClient
from synrepl.services.federation.inbound.admission import InboundAdmission
from synrepl.services.federation.inbound.edus import (
    EduReceiver,
    ForeignReceipt,
)
from synrepl.services.federation.inbound.fetching import EventFetcher
from synrepl.services.federation.inbound.gaps import GapFiller
from synrepl.services.federation.inbound.handover import EventHandover
from synrepl.services.federation.inbound.room_inboxes import RoomInboxes
from synrepl.services.federation.inbound.sweeping import InboundSweeper, RoomWaker
from synrepl.services.federation.inbound.transactions import TransactionReceiver
from synrepl.services.federation.verifying import EventVerifier
from synrepl.services.forwarding import WriterActions, WriterUnreachable
from synrepl.services.rooms.room_writers import RoomWriters
from synrepl.services.rooms.sending.forwarded_errors import FORWARDED_ERRORS
from synrepl.storage.clients.values import Presence
from tests.services.world import NullLog
from tests.storage.rooms.store_case import PersistingProcess, StoreCase

T = TypeVar("T")

#: For IDs of transactions.
_NUMBERS = count()

#: This server, and two others.
HERE, REMOTE, OTHER = "here.test", "remote.test", "other.test"
ALICE, BOB, CAROL = f"@alice:{HERE}", f"@bob:{REMOTE}", f"@carol:{OTHER}"


class KeysOfAll:
    """Knows the keys of all servers. Implements ``KnowsKeys`` of the verifier."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def known(self, servers: Collection[str]) -> Keys:
        return {each: self._keys[each] for each in servers}

    async def for_events(self, wanted: Mapping[str, Mapping[str, int]]) -> Keys:
        return {}


class NoThreads:
    """Runs work at once. Implements ``RunsInThreads``."""

    concurrency = 2

    async def run(self, work: Callable[[], T]) -> T:
        return work()


class RecordedEdus:
    """Records EDUs that reach their sinks. Implements ``EduSinks``."""

    def __init__(self) -> None:
        self.taken: list[tuple[Any, ...]] = []
        self.errors: list[Exception] = []

    def _take(self, *what: Any) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.taken.append(what)

    async def typing(self, user_id: str, room_id: str, is_typing: bool) -> None:
        self._take("typing", user_id, room_id, is_typing)

    async def receipt(self, receipt: ForeignReceipt) -> None:
        self._take("receipt", *receipt)

    async def presence(self, presences: Sequence[Presence]) -> None:
        self._take("presence", *presences)

    async def device_list_changed(self, user_id: str) -> None:
        self._take("device list", user_id)

    async def to_devices(
        self,
        sender: str,
        kind: str,
        messages: Mapping[str, Mapping[str, Mapping[str, Any]]],
        request: str,
    ) -> None:
        self._take("to devices", sender, kind, messages, request)


class InboundProcess:
    """A process that takes in what other servers send.

    :param persists: whether rooms are persisted here
    :ivar others: processes that it reaches by name
    """

    def __init__(
        self,
        process: PersistingProcess,
        federation: InMemoryFederation,
        writers: Sequence[str],
        persists: bool = True,
        wait_s: float = 60.0,
    ) -> None:
        inner = process.process
        self.process = process
        self.others: dict[str, InboundProcess] = {}
        self.forwarded: list[tuple[str, str]] = []
        scheduler, database, log = inner.scheduler, inner.database, NullLog()
        self.actions = WriterActions(FORWARDED_ERRORS)
        self.edus = RecordedEdus()
        self.verifier = EventVerifier(scheduler, KeysOfAll(federation.keys), NoThreads(), log)
        self.client = FederationClient(federation.transport(HERE), HERE)
        self.fetcher = EventFetcher(
            scheduler, database, self.client, self.verifier, process.persister
        )
        self.gaps = GapFiller(scheduler, database, self.fetcher, process.persister, HERE, log)
        self.inboxes = RoomInboxes(scheduler, database, process.persister, self.gaps, log)
        self.admission = InboundAdmission(database, HERE, writers)
        self.sweeper = InboundSweeper(
            scheduler,
            database,
            RoomWriters(database, writers),
            self.inboxes if persists else None,
            self.gaps if persists else None,
            inner.name,
            log,
        )
        self.sweeper.add_actions(self.actions)
        self.handover = EventHandover(
            database,
            self.inboxes if persists else None,
            RoomWaker(scheduler, self),
            inner.name,
            wait_s,
        )
        self.receiver_edus = EduReceiver(scheduler, self.edus, self.admission, log)
        self.receiver = TransactionReceiver(
            scheduler,
            database,
            self.admission,
            self.verifier,
            self.handover,
            self.receiver_edus,
        )

    async def forward(self, writer: str, action: str, argument: Mapping[str, Any]) -> Any:
        """Have another process perform an action; everything goes through JSON."""
        if writer not in self.others:
            raise WriterUnreachable(writer=writer)
        self.forwarded.append((writer, action))
        decoded = json.loads(json.dumps(argument))
        answer = await self.others[writer].actions.perform(action, decoded)
        return self.actions.result(writer, json.loads(json.dumps(answer)))

    async def receive(
        self,
        pdus: Sequence[Event | bytes],
        edus: Sequence[object] = (),
        *,
        origin: str = REMOTE,
        txn_id: str | None = None,
    ) -> dict[str, Any]:
        """Receive a transaction; returns the outcomes of its PDUs."""
        raws = [each.raw if isinstance(each, Event) else each for each in pdus]
        body = b'{"origin":"%b","origin_server_ts":1,"pdus":[%b],"edus":%b}' % (
            origin.encode(),
            b",".join(raws),
            json.dumps(list(edus)).encode(),
        )
        answer = await self.receiver.receive(origin, txn_id or f"n{next(_NUMBERS)}", body)
        found: dict[str, Any] = json.loads(answer)["pdus"]
        return found

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not (self.inboxes.is_busy or self.gaps.active or self.receiver.active)


class InboundCase(StoreCase):
    """A process of this server, and another server with a room that Alice of this server is in."""

    versions: Sequence[str] = ("10",)

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.connection = self.connect()
        self.federation = InMemoryFederation(self.one.process.scheduler)
        self.remote = PureServer(REMOTE, self.federation)
        self.here = self.inbound(self.one)

    def inbound(
        self, process: PersistingProcess, writers: Sequence[str] = ("one",), **more: Any
    ) -> InboundProcess:
        """What takes in events, in a process."""
        return InboundProcess(process, self.federation, writers, **more)

    async def shared_room(self, version: str = "10", name: str = "room", **more: Any) -> HostedRoom:
        """A room of Bob's that Alice has joined. This server has all of its events."""
        room = self.remote.create_room(version, BOB, name=name, **more)
        self.remote.send(room.room_id, "m.room.member", ALICE, {"membership": "join"}, ALICE)
        await self.store(room)
        return room

    async def store(self, room: HostedRoom) -> None:
        """Have this server know all events of a room."""
        events = [each.event for each in room.room]
        done = await self.one.persist(room.room_id, room.version, events)
        self.assertEqual({each.outcome.value for each in done.events} - {"known"}, {"accepted"})

    def say(self, room: HostedRoom, body: str = "hello", sender: str = BOB, **more: Any) -> Event:
        """A message that the other server has, and nobody else."""
        content = {"msgtype": "m.text", "body": body}
        return self.remote.send(room.room_id, "m.room.message", sender, content, **more)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Deferred[T]:
        """Run a coroutine on its own."""
        return Deferred.fromCoroutine(coroutine)

    async def settled(self, *processes: InboundProcess) -> None:
        """Wait until nothing is under way."""
        await self.until(lambda: all(each.is_idle for each in processes or (self.here,)))

    def sql(self, statement: str, *params: object, on: Any = None) -> Any:
        """Run a statement, on the same connection each time."""
        return super().sql(statement, *params, on=on or self.connection)

    def assert_same_state(self, room: HostedRoom) -> None:
        """The current state of a room is what another server has."""
        self.assertEqual(self.current_state(room), named(room.room.current_state().as_dict()))

    def current_state(self, room: HostedRoom) -> dict[str, str]:
        """The current state of a room here."""
        found: dict[str, str] = self.sql(
            "SELECT coalesce(json_object_agg(k.type || ' ' || k.state_key, e.event_id), '{}')"
            " FROM synrepl._rooms r JOIN synrepl._current_state c USING (room_no)"
            " JOIN synrepl._room_keys k USING (room_no, slot)"
            " JOIN synrepl._room_events e USING (event_no) WHERE r.room_id = %s",
            room.room_id,
        )
        return found

    def stored(self, event: Event) -> str | None:
        """What this server has of an event."""
        flags = self.sql(
            "SELECT flags FROM synrepl._room_events WHERE event_id = %s", event.event_id
        )
        if flags is None:
            waits = "SELECT 1 FROM synrepl._waiting_events WHERE event_id = %s"
            return "waiting" if self.sql(waits, event.event_id) else None
        names = {1: "outlier", 2: "rejected", 4: "soft-failed", 8: "partial"}
        found = [name for bit, name in names.items() if flags & bit]
        return ", ".join(found) or "accepted"


def named(state: Mapping[StateKey, str]) -> dict[str, str]:
    """A state by types and state keys."""
    return {f"{kind} {key}": event_id for (kind, key), event_id in state.items()}

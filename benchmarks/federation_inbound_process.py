"""The receiving process: ``DSN EVENTS REPETITIONS``; see :mod:`benchmarks.federation_inbound`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import count
from time import perf_counter, process_time
from typing import Any

from signedjson.key import decode_signing_key_base64, get_verify_key
from signedjson.types import SigningKey
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import react
from twisted.logger import Logger
from twisted.web.http_headers import Headers
from unpaddedbase64 import decode_base64, encode_base64

from benchmarks.child import limit_lifetime, report
from benchmarks.server_cpu import ServerProcesses
from synrepl.adapters.client_api.rate_limits import RateLimit, RateLimiter
from synrepl.adapters.federation.signed_endpoints import FederationEndpoints, OriginLimits
from synrepl.adapters.http.messages import HttpRequest
from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.postgres.session import open_session
from synrepl.adapters.postgres.short_transactions import PostgresShortTransactions
from synrepl.adapters.postgres.single import PostgresSingles
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.worker_threads import WorkerThreads
from synrepl.core import jsons
from synrepl.core.garbage import collect_after_batches
from synrepl.daemon.federation.ports import THREADS
from synrepl.daemon.federation.transactions import transaction_routes
from synrepl.federation.transactions import transaction_content
from synrepl.federation.x_matrix import sign_request
from synrepl.rooms import (
    Event,
    EventBuilder,
    EventDraft,
    Keys,
    ServerKey,
    room_version,
    server_of,
)
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.federation.inbound.admission import InboundAdmission
from synrepl.services.federation.inbound.edu_sinks import NoSinks
from synrepl.services.federation.inbound.edus import EduReceiver
from synrepl.services.federation.inbound.handover import EventHandover
from synrepl.services.federation.inbound.room_inboxes import RoomInboxes
from synrepl.services.federation.inbound.transactions import TransactionReceiver
from synrepl.services.federation.verifying import EventVerifier
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.migrations import load, migrate
from synrepl.storage.postgres.store import PostgresStore
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.streams.rows import RowCodec

#: The rooms, the servers that send into them, and the users in each room.
ROOMS, ORIGINS, MEMBERS = 100, 10, 20

#: PDUs of a transaction.
PDUS = 50

HERE = "here.test"
_VERSION = room_version("10")


def _key(server: str) -> SigningKey:
    seed = encode_base64(sha256(server.encode()).digest())
    return decode_signing_key_base64("ed25519", "1", seed)


class SignedRoom:
    """A room of other servers, each of which continues with its own events.

    :param origins: the servers; the users of the first one make the room
    :ivar first: the events that make the room, with a member of this server
    """

    def __init__(self, number: int, origins: Sequence[str]) -> None:
        self.origins = origins
        self.room_id = f"!room{number}:{origins[0]}"
        self._builders = {each: EventBuilder(_VERSION, each, _key(each)) for each in origins}
        self._users = [f"@user{each}:{origins[each % len(origins)]}" for each in range(MEMBERS)]
        self._time = 1
        creator = self._users[0]
        create = self._made(
            "m.room.create", creator, {"room_version": "10", "creator": creator}, "", []
        )
        self._create = create
        self.first = [create]
        self._members: dict[str, Event] = {}
        self._levels: Event | None = None
        self._join(creator)
        self._levels = self._state("m.room.power_levels", {"users": {creator: 100}})
        self._rules = self._state("m.room.join_rules", {"join_rule": "public"})
        for each in self._users[1:]:
            self._join(each)
        ours = EventBuilder(_VERSION, HERE, _key(HERE))
        draft = EventDraft("m.room.member", f"@us:{HERE}", {"membership": "join"}, 1, f"@us:{HERE}")
        cited = [create, self._levels, self._rules]
        self.first.append(ours.assemble(draft, self.room_id, [self.first[-1]], cited))
        self._last = dict.fromkeys(origins, self.first[-1])

    def _made(
        self,
        kind: str,
        sender: str,
        content: dict[str, Any],
        key: str | None,
        cited: Sequence[Event],
    ) -> Event:
        self._time += 1
        draft = EventDraft(kind, sender, content, self._time, key)
        builder = self._builders[server_of(sender)]
        if kind == "m.room.create":
            return builder.create(draft, self.room_id)
        return builder.assemble(draft, self.room_id, [self.first[-1]], cited)

    def _join(self, user: str) -> None:
        cited = [self._create, *([self._levels, self._rules] if self._levels else [])]
        self._members[user] = self._made("m.room.member", user, {"membership": "join"}, user, cited)
        self.first.append(self._members[user])

    def _state(self, kind: str, content: dict[str, Any]) -> Event:
        creator = self._users[0]
        cited = [self._create, self._members[creator], *([self._levels] if self._levels else [])]
        made = self._made(kind, creator, content, "", cited)
        self.first.append(made)
        return made

    def message(self, origin: str) -> Event:
        """The next message of a server."""
        self._time += 1
        own = [each for each in self._users if server_of(each) == origin]
        user = own[self._time % len(own)]
        content = {"msgtype": "m.text", "body": f"message number {self._time} of this room"}
        draft = EventDraft("m.room.message", user, content, self._time)
        assert self._levels is not None
        cited = [self._create, self._levels, self._members[user]]
        last = self._builders[origin].assemble(draft, self.room_id, [self._last[origin]], cited)
        self._last[origin] = last
        return last


class RememberedKeys:
    """Knows all keys, for events and for requests."""

    def __init__(self, servers: Collection[str]) -> None:
        self._keys = {
            each: {"ed25519:1": ServerKey(get_verify_key(_key(each)))} for each in servers
        }

    async def known(self, servers: Collection[str]) -> Keys:
        return {each: self._keys[each] for each in servers}

    async def for_events(self, wanted: Mapping[str, Mapping[str, int]]) -> Keys:
        return {}

    def remembered(self, server: str, key_id: str) -> ServerKey | None:
        return self._keys[server].get(key_id)

    async def for_request(self, server: str, key_id: str) -> ServerKey | None:
        return None


class NoGaps:
    """There are none."""

    def gap_found(self, room_id: str, origin: str) -> None:
        raise AssertionError(f"events of {room_id} wait for others")


class LocalWaker:
    """Has the staged events of this process judged, as if another one had staged them."""

    def __init__(self, inboxes: RoomInboxes) -> None:
        self._inboxes = inboxes

    def wake(self, rooms: Mapping[str, str]) -> None:
        for room_id in rooms:
            self._inboxes.wake(room_id)


class Receiving:
    """A process that takes in transactions.

    :param stages: whether all events are staged first
    """

    def __init__(self, clock: Any, process: Process, *, stages: bool) -> None:
        scheduler, database, log = process.scheduler, process.database, Logger()
        self.inboxes = RoomInboxes(scheduler, database, process.persister, NoGaps(), log)
        admission = InboundAdmission(database, HERE, ["master"])
        handover = EventHandover(
            database, None if stages else self.inboxes, LocalWaker(self.inboxes), "master"
        )
        threads = WorkerThreads(clock, "signatures", THREADS)
        verifier = EventVerifier(scheduler, process.keys, threads, log)
        receiver = TransactionReceiver(
            scheduler,
            database,
            admission,
            verifier,
            handover,
            EduReceiver(scheduler, NoSinks(), admission, log),
        )
        limit = RateLimit(1e6, 10**6)

        async def heard_of(server: str) -> None:
            pass

        endpoints = FederationEndpoints(
            scheduler,
            HERE,
            process.keys,
            OriginLimits(RateLimiter(scheduler, limit), RateLimiter(scheduler, limit), 100),
            threads,
            heard_of,
            lambda request: "127.0.0.1",
        )
        (self._route,) = transaction_routes(endpoints, receiver)

    async def take(self, requests: Sequence[HttpRequest]) -> None:
        """Take in the transactions of one server, one after the other."""
        for each in requests:
            answer = await self._route.handle(each)
            outcomes = jsons.decode(answer.body, "the answer")["pdus"]
            assert len(outcomes) == PDUS
            assert not any(outcomes.values()), outcomes


class Process:
    """The store of the process."""

    def __init__(self, clock: Any, dsn: str, servers: Collection[str]) -> None:
        self.scheduler = TwistedScheduler(clock)
        self.database = PostgresDatabase(clock, dsn, "master")
        self.store = PostgresStore(
            self.scheduler,
            self.database,
            lambda: open_session(clock, dsn, "master"),
            "this",
            notify=False,
            statements=PostgresSingles(clock, dsn, "master"),
            short=PostgresShortTransactions(clock, dsn, "master", self.database.was_committed),
        )
        self.keys = RememberedKeys(servers)

    async def start(self) -> None:
        """Acquire the writer's lease."""
        await migrate(self.database, load())
        await self.store.prepare(list(ROOM_STREAMS))
        log, scheduler = Logger(), self.scheduler
        codecs = {stream.name: RowCodec(stream) for stream in ROOM_STREAMS}
        publisher = Publisher(scheduler, codecs)
        announcer = Announcer(scheduler, self.store, list(ROOM_STREAMS), publisher, log)
        writer = StreamWriter(scheduler, self.store, "master", ROOM_STREAMS, announcer, log)
        await writer.start()
        await announcer.start()
        self.persister = RoomPersister(scheduler, writer)


_NUMBERS = count()


def request_of(origin: str, pdus: Sequence[Event]) -> HttpRequest:
    """A signed request with a transaction."""
    txn_id = f"t{next(_NUMBERS)}"
    content = transaction_content(origin, 1, [each.raw for each in pdus], [])
    uri = f"/_matrix/federation/v1/send/{txn_id}"
    header = sign_request(_key(origin), "PUT", uri, origin, HERE, content)
    headers = Headers({"Authorization": [header]})
    return HttpRequest({"txn": txn_id}, {}, headers, content, "127.0.0.1", "PUT", uri)


def transactions(
    rooms: Sequence[SignedRoom], events: int, rooms_of_each: int
) -> Iterator[tuple[str, list[HttpRequest]]]:
    """The transactions of each server, in its order."""
    for origin in sorted({origin for each in rooms for origin in each.origins}):
        own = [each for each in rooms if origin in each.origins]
        requests = []
        for number in range(events // PDUS):
            at = number * rooms_of_each % len(own)
            chosen = [own[(at + each) % len(own)] for each in range(rooms_of_each)]
            pdus = [room.message(origin) for room in chosen for _ in range(PDUS // rooms_of_each)]
            requests.append(request_of(origin, pdus))
        yield origin, requests


def library_seconds(rooms: Sequence[SignedRoom], events: int) -> float:
    """CPU time that libraries need for as many messages: JSON, two hashes, a signature."""
    chosen = [rooms[number % len(rooms)] for number in range(events)]
    made = [each.message(each.origins[0]) for each in chosen]
    servers = {each.origins[0] for each in rooms}
    keys = {each: get_verify_key(_key(each)) for each in servers}
    signed = [(each.signed_bytes(), each.signatures) for each in made]
    begin = process_time()
    for event, (text, signatures) in zip(made, signed, strict=True):
        fields, _ = jsons.decode_exactly(event.raw, "an event")
        sha256(jsons.canonical_of_decoded(fields)).digest()
        sha256(text).digest()
        ((server, of_server),) = signatures.items()
        keys[server].verify(text, decode_base64(of_server["ed25519:1"]))
    return process_time() - begin


async def measure(clock: Any, arguments: Sequence[str]) -> None:
    """Measure everything."""
    dsn, events, repetitions = arguments[0], *map(int, arguments[1:])
    collect_after_batches()  # as a daemon does
    origins = [f"server{number}.test" for number in range(ORIGINS)]
    process = Process(clock, dsn, [HERE, *origins])
    await process.start()
    server = ServerProcesses(dsn)
    found: dict[str, Any] = {}
    for kind, rooms_of_each, shared in (
        ("spread", 10, False),
        ("scattered", 50, True),
        ("staged", 10, False),
    ):
        rooms = [
            SignedRoom(next(_NUMBERS), origins if shared else [origins[each % ORIGINS]])
            for each in range(ROOMS)
        ]
        for room in rooms:
            incoming = [IncomingEvent(each) for each in room.first]
            await process.persister.persist(room.room_id, "10", incoming)
        receiving = Receiving(clock, process, stages=kind == "staged")
        figures: dict[str, Any] = {"cpu": [], "wall": [], "process": 0.0}
        for nth in range(repetitions + 1):
            sent = list(transactions(rooms, events // ORIGINS, rooms_of_each))
            total = sum(PDUS * len(requests) for _, requests in sent)
            wall, cpu, of_server = perf_counter(), process_time(), server.cpu()
            await _all([receiving.take(requests) for _, requests in sent])
            while receiving.inboxes.is_busy:
                await process.scheduler.sleep(0)
            own = process_time() - cpu
            if nth:
                figures["cpu"].append(own + server.cpu() - of_server)
                figures["wall"].append(perf_counter() - wall)
                figures["process"] += own
            figures["events"] = total
        found[kind] = figures
        if kind == "spread":
            found["library"] = min(library_seconds(rooms, total) for _ in range(3))
    report(found)


async def _all(works: Sequence[Any]) -> None:
    await gatherResults([Deferred.fromCoroutine(each) for each in works], consumeErrors=True)


if __name__ == "__main__":
    limit_lifetime()
    react(lambda clock: Deferred.fromCoroutine(measure(clock, sys.argv[1:])))

"""Fixture: the services of several processes over one real Redis, with one in-memory store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred

from synrepl.adapters.redis.address import RedisAddress
from synrepl.adapters.redis.pubsub import RedisPubSub
from synrepl.adapters.redis.sentinel import Sentinels
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.tokens import Range
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.bus.bus import Bus
from synrepl.services.bus.bus_publisher import BusPublisher
from synrepl.services.bus.bus_reader import BusReader
from synrepl.services.bus.channels import Channels
from synrepl.services.bus.own_writer import OwnWriter
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.handlers import Batch, Handler
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.store import Page
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.declared import declare
from synrepl.streams.definition import Stream
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.wire.commands import Command

reactor: Any = _reactor

SERVER_NAME = "example.org"
NOTES = declare("notes", {"text": "text"})


class EventWaiter:
    """Lets a test wait for conditions, which are checked whenever an event happens."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], bool], Deferred[None]]] = []

    def happened(self) -> None:
        """Check the conditions: an event has happened."""
        for pair in list(self._waiting):
            if pair[0]():
                self._waiting.remove(pair)
                pair[1].callback(None)

    def until(self, true: Callable[[], bool]) -> Deferred[None]:
        """Fires once ``true()`` returns True."""
        found: Deferred[None] = Deferred()
        self._waiting.append((true, found))
        self.happened()
        return found


class RecordingHandler(Handler):
    """Records rows and commands.

    :ivar texts: texts of the notes of each writer, in order
    :ivar rows: number of rows of each stream
    """

    def __init__(self, happenings: EventWaiter) -> None:
        self._happenings = happenings
        self.texts: dict[str, list[str]] = {}
        self.rows: Counter[str] = Counter()
        self.commands: list[Command] = []

    async def on_rows(self, batch: Batch) -> None:
        """Record the rows."""
        self.rows[batch.stream] += len(batch.rows)
        if batch.stream == NOTES.name:
            texts = self.texts.setdefault(batch.writer, [])
            texts += [row.text for row in batch.rows]  # type: ignore[attr-defined]
        self._happenings.happened()

    async def on_command(self, source: str, command: Command) -> None:
        """Record the command."""
        self.commands.append(command)
        self._happenings.happened()


class Site:
    """What the processes share: scheduler, store and catalogue.

    :ivar fetches: number of gaps filled from the store, by writer
    """

    def __init__(self) -> None:
        self.scheduler = TwistedScheduler(reactor)
        self.store = MemoryStore(self.scheduler)
        self.happenings = EventWaiter()
        self.catalogue = Catalogue((*SYNAPSE_STREAMS, NOTES))
        self.fetches: Counter[str] = Counter()

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Fill a gap from the store."""
        self.fetches[writer or ""] += 1
        return await self.store.page(stream, span, writer, limit)


class WatchedBus(Bus):
    """A bus that reports each batch of received messages as an event."""

    happenings: EventWaiter

    def messages_received(self, messages: Sequence[bytes]) -> None:
        """Handle the messages, and report the event."""
        super().messages_received(messages)
        self.happenings.happened()


class Process:
    """The services of one process, which writes notes under its name and follows those of others.

    They serve to test the connections, and are made here, not assembled: an assembled worker
    follows itself, claims its name first, and does not receive USER_IP.

    :param clock: the clock of its connections; by default, real time
    """

    def __init__(
        self,
        site: Site,
        name: str,
        address: RedisAddress | Sentinels,
        per_stream: bool = False,
        user_ip: bool = False,
        foreign: bool = False,
        clock: Any = None,
    ) -> None:
        self.site = site
        self.logged: list[str] = []
        self.handler = RecordingHandler(site.happenings)
        self.channels = Channels(SERVER_NAME, per_stream)
        scheduler = site.scheduler
        publisher = Publisher(scheduler, {s.name: RowCodec(s) for s in site.catalogue})
        own = OwnWriter(publisher)
        self.writer = StreamWriter(scheduler, site.store, name, [NOTES], own, self)
        self.follower = Follower(
            scheduler,
            site.catalogue,
            site,
            Delivery(scheduler, [Subscription(self.handler)], self),
            self,
            earliest=not foreign,
            foreign=foreign,
        )
        self.reader = BusReader(name, self)
        streams = [stream.name for stream in site.catalogue]
        bus_publisher = BusPublisher(publisher, self.channels, own)
        self.bus = WatchedBus(self.channels, streams, self.reader, self.follower, bus_publisher)
        self.bus.happenings = site.happenings
        self.pubsub = RedisPubSub(
            reactor,
            scheduler if clock is None else TwistedScheduler(clock),
            address,
            self.channels.subscriptions(streams, user_ip),
            self.bus,
            self.info,
        )

    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        """Keep a line."""
        self.logged.append(format.format(**facts))
        reactor.callLater(0, self.site.happenings.happened)

    warn = info

    async def start(self, case: Any) -> Process:
        """Acquire the writer's lease, and wait until the bus is connected."""
        await self.writer.start()
        self.pubsub.start()
        case.addCleanup(lambda: Deferred.fromCoroutine(self.stop()))
        await self.stands()
        return self

    async def stop(self) -> None:
        """Disconnect."""
        await self.pubsub.stop()
        await self.writer.stop()

    async def stands(self, connections: int = 1) -> None:
        """Wait until the bus was connected ``connections`` times."""
        await self.site.happenings.until(
            lambda: self.pubsub.connections >= connections and self.bus.is_connected
        )

    async def falls(self) -> None:
        """Wait until the bus is disconnected."""
        await self.site.happenings.until(lambda: not self.bus.is_connected)

    async def publish(self, *texts: str, facts: bool = True) -> None:
        """Append notes, as one fact each, or as the rows of one fact."""
        decode = RowCodec(NOTES).decode
        rows = [decode(json.dumps([text]).encode()) for text in texts]
        await self.writer.append(NOTES, [[row] for row in rows] if facts else [rows])

    async def receives(self, writer: str, texts: Sequence[str]) -> None:
        """Wait until exactly these notes of another process have arrived."""
        received = self.handler.texts
        await self.site.happenings.until(lambda: len(received.get(writer, [])) >= len(texts))
        if received[writer] != list(texts):
            raise AssertionError(f"{received[writer][:9]}… instead of {list(texts)[:9]}…")

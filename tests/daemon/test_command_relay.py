"""Commands that are not about streams, between a master's TCP clients and a real Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.protocols.basic import LineOnlyReceiver

from synrepl.adapters.redis.address import RedisAddress
from synrepl.adapters.redis.pubsub import RedisBusConnections, RedisPubSub
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.services.handlers import Handler
from synrepl.testing.redis import RedisTestServer
from synrepl.wire.commands import Command
from tests.adapters.redis_fixture import EventWaiter, reactor
from tests.cli.cli_case import CliCase

MAIN, USER_IPS = "example.com", "example.com/USER_IP"
USER_IP = 'USER_IP @u:x ["t","127.0.0.1","curl",null,5]'


class RecordingHandler(Handler):
    """Records the commands that the master's handlers receive, with their source."""

    received: ClassVar[list[tuple[str, str]]] = []

    async def on_command(self, source: str, command: Command) -> None:
        """Keep it."""
        self.received.append((source, command.verb))


class Client(LineOnlyReceiver):
    """A TCP client; keeps lines but those of the connection and of streams."""

    transport: Any
    delimiter = b"\n"

    def __init__(self, happenings: EventWaiter) -> None:
        self.lines: list[str] = []
        self.asked = False
        self._happenings = happenings

    def send(self, *lines: str) -> None:
        """Say some lines."""
        self.sendLine("\n".join(lines).encode())

    def lineReceived(self, line: bytes) -> None:
        """Keep it."""
        verb = line.split()[0]
        self.asked = self.asked or verb == b"POSITION"
        if verb not in (b"SERVER", b"PING", b"POSITION", b"RDATA"):
            self.lines.append(line.decode())
        self._happenings.happened()


class OnBus:
    """Another process on the bus, which subscribes to some channels and publishes."""

    def __init__(self, happenings: EventWaiter, address: RedisAddress, *channels: str) -> None:
        self.lines: list[str] = []
        self.wires: RedisBusConnections | None = None
        self._happenings = happenings
        scheduler = TwistedScheduler(reactor)
        self.pubsub = RedisPubSub(reactor, scheduler, address, channels, self, lambda *a, **b: None)

    def connected(self, wires: RedisBusConnections) -> None:
        """It can speak."""
        self.wires = wires
        self._happenings.happened()

    def messages_received(self, messages: Sequence[bytes]) -> None:
        """Keep what is not about streams."""
        lines = [message.decode() for message in messages]
        self.lines += [line for line in lines if line.split()[0] not in ("POSITION", "REPLICATE")]
        self._happenings.happened()

    def disconnected(self) -> None:
        """It cannot."""

    def send(self, line: str) -> None:
        """Say a line on the main channel."""
        assert self.wires is not None
        self.wires.publish(MAIN, [line.encode()])


class CommandRelay(CliCase):
    """A master with two modern clients, and others on the bus."""

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        RecordingHandler.received.clear()
        self.happenings = EventWaiter()
        redis = RedisTestServer()
        self.addCleanup(redis.close)
        self.all = self.on_bus(RedisAddress(path=redis.path), MAIN, USER_IPS)
        self.main = self.on_bus(RedisAddress(path=redis.path), MAIN)
        await self.happenings.until(lambda: bool(self.all.wires and self.main.wires))
        self.server = await self.master(
            redis=f"{{path: {redis.path}}}", handlers=f"['{__name__}:RecordingHandler']"
        )
        bus = self.server.services.bus
        assert bus is not None
        while not bus.is_connected:
            await TwistedScheduler(reactor).sleep(0.01)
        self.one, self.two = await self.client("one"), await self.client("two")

    def on_bus(self, address: RedisAddress, *channels: str) -> OnBus:
        """Another process on the bus."""
        made = OnBus(self.happenings, address, *channels)
        made.pubsub.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(made.pubsub.stop()))
        return made

    async def client(self, name: str, *asks: str) -> Client:
        """A client that has asked for positions, and been answered."""
        endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", self.server.port)
        client: Any = await connectProtocol(endpoint, Client(self.happenings))
        self.addCleanup(client.transport.loseConnection)
        client.send(f"NAME {name}", *(asks or ("REPLICATE ",)))
        await self.happenings.until(lambda: client.asked)
        return client  # type: ignore[no-any-return]

    async def until_received(self, where: Client | OnBus, *lines: str) -> None:
        """Wait until as many lines have been received, and compare them."""
        await self.happenings.until(lambda: len(where.lines) >= len(lines))
        self.assertEqual(where.lines, list(lines))

    async def test_commands_of_clients_are_relayed_to_the_bus_once(self) -> None:
        lines = (
            "USER_SYNC w3 @u:x start 5",
            "FEDERATION_ACK w3 7",
            USER_IP,
            "REMOTE_SERVER_UP other.org",
            "CLEAR_USER_SYNC w3",
            "REMOTE_SERVER_UP other.org",  # the same again is not the same
        )
        self.one.send(*lines[:-1])
        # What still waits to be passed on is not passed on twice.
        await self.until_received(self.two, "REMOTE_SERVER_UP other.org")
        self.one.send(lines[-1], "REMOTE_SERVER_UP the.end")
        over_bus = [lines[0].replace("@u:x", "@u:x None"), *lines[1:], "REMOTE_SERVER_UP the.end"]
        await self.until_received(self.all, *over_bus)
        await self.until_received(self.main, *[line for line in over_bus if line != USER_IP])
        # Clients hear of servers, but not what they said themselves; also not by the bus.
        self.all.send("REMOTE_SERVER_UP again.org")
        ups = ["other.org", "other.org", "the.end", "again.org"]
        await self.until_received(self.two, *[f"REMOTE_SERVER_UP {up}" for up in ups])
        await self.until_received(self.one, "REMOTE_SERVER_UP again.org")
        # Nor do handlers receive it a second time.
        verbs = [line.split()[0] for line in lines]
        expected = [("one", verb) for verb in (*verbs, "REMOTE_SERVER_UP")]
        self.assertEqual(RecordingHandler.received, [*expected, ("bus", "REMOTE_SERVER_UP")])

    async def test_commands_from_the_bus_are_relayed_to_clients_whose_dialect_has_them(
        self,
    ) -> None:
        for line in ("USER_SYNC w9 @u:x None start 5", "NEW_ACTIVE_TASK t", "FEDERATION_ACK w9 1"):
            self.all.send(line)
        self.all.send('LOCK_RELEASED ["w9","lock","key"]')
        legacy = await self.client("old", "REPLICATE events NOW")
        self.all.send("REMOTE_SERVER_UP other.org")
        for client in (self.one, self.two, legacy):
            await self.until_received(client, "REMOTE_SERVER_UP other.org")
        verbs = ["USER_SYNC", "NEW_ACTIVE_TASK", "FEDERATION_ACK", "LOCK_RELEASED"]
        self.assertEqual(
            [verb for _, verb in RecordingHandler.received], [*verbs, "REMOTE_SERVER_UP"]
        )
        # There was no loop: each process on the bus has received each line once.
        self.assertEqual(len(self.all.lines), 5)

    async def test_commands_of_the_oldest_clients_are_relayed_under_their_name(self) -> None:
        legacy = await self.client("old", "REPLICATE events NOW")
        legacy.send("USER_SYNC @u:x start 5", "FEDERATION_ACK 3", "REMOVE_PUSHER app key @u:x")
        legacy.send('INVALIDATE_CACHE users ["@u:x"]')
        nameless = await self.client("with spaces", "REPLICATE events NOW")
        nameless.send("USER_SYNC @v:x start 6")
        await self.happenings.until(lambda: len(self.all.lines) == 3)
        legacy.transport.loseConnection()
        await self.until_received(
            self.all,
            "USER_SYNC old @u:x None start 5",
            "FEDERATION_ACK old 3",
            "USER_SYNC master @v:x None start 6",
            "USER_SYNC old @u:x None end 5",  # nobody syncs through it any more
        )

"""Processes over a real Redis: nothing is lost, whatever becomes of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from twisted.internet import ssl
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.protocols.portforward import ProxyFactory
from twisted.trial.unittest import TestCase

from synrepl.adapters.redis import connection as redis_connection
from synrepl.adapters.redis import pubsub as redis_pubsub
from synrepl.adapters.redis.address import BadCertificates, RedisAddress
from synrepl.adapters.redis.connection import RedisPublisher
from synrepl.adapters.redis.sentinel import Sentinels
from synrepl.testing.redis import RedisTestServer
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import RemoteServerUp, UserIp
from tests.adapters.raw_http_client import turn
from tests.adapters.redis_fixture import SERVER_NAME, Process, Site, reactor


class OverRedis(TestCase):
    timeout = 60

    def server(self, *settings: str, password: str | None = None) -> RedisTestServer:
        redis = RedisTestServer(*settings, password=password)
        self.addCleanup(redis.close)
        return redis

    def setUp(self) -> None:
        self.site = Site()
        self.addCleanup(self.site.scheduler.stop)

    async def two(self, redis: RedisTestServer, **options: Any) -> tuple[Process, Process]:
        address = RedisAddress(port=redis.port)
        one = await Process(self.site, "one", address, **options).start(self)
        two = await Process(self.site, "two", address, **options).start(self)
        return one, two


class FactsOverRedis(OverRedis):
    async def test_processes_receive_each_others_facts_in_order(self) -> None:
        one, two = await self.two(self.server())
        texts = [f"note {n}" for n in range(500)]
        await one.publish(*texts[:250])
        await two.publish(*texts)
        await one.publish(*texts[250:])
        await two.receives("one", texts)
        await one.receives("two", texts)

    async def test_facts_of_several_rows_and_rows_of_any_length(self) -> None:
        one, two = await self.two(self.server())
        texts = ["a", "", "ü" * 1_000_000, "b"]
        await one.publish(*texts, facts=False)
        await one.publish("x" * 3_000_000)
        await two.receives("one", [*texts, "x" * 3_000_000])
        self.assertEqual(self.site.fetches, {})  # they came over the wire

    async def test_drops_its_own_echo(self) -> None:
        one, two = await self.two(self.server())
        await one.publish("a", "b")
        await two.publish("c")
        await one.receives("two", ["c"])
        await self.site.happenings.until(lambda: one.reader.echoes >= 2)
        self.assertNotIn("one", one.handler.texts)

    async def test_a_later_process_catches_up(self) -> None:
        """REPLICATE is answered by all, each for itself."""
        redis = self.server()
        one, two = await self.two(redis)
        await one.publish("a")
        await two.publish("b")
        three = Process(self.site, "three", RedisAddress(port=redis.port))
        await three.start(self)
        await three.receives("one", ["a"])
        await three.receives("two", ["b"])

    async def test_publishes_on_a_channel_per_stream(self) -> None:
        redis = self.server()
        one, two = await self.two(redis, per_stream=True)
        channels = redis.command("PUBSUB", "CHANNELS", "*")
        assert isinstance(channels, list)
        self.assertIn(f"{SERVER_NAME}/stream/notes".encode(), channels)
        await one.publish("a")
        await two.receives("one", ["a"])

    async def test_commands_and_user_ip_go_where_they_belong(self) -> None:
        redis = self.server()
        one, two = await self.two(redis)
        three = Process(self.site, "three", RedisAddress(port=redis.port), user_ip=True)
        await three.start(self)
        ip, up = UserIp("@a:b", "t", "127.0.0.1", "curl", None, 5), RemoteServerUp("other.org")
        one.bus.send(ip)
        one.bus.send(up)
        for process in (two, three):
            await self.site.happenings.until(lambda p=process: up in p.handler.commands)
        self.assertIn(ip, three.handler.commands)
        self.assertNotIn(ip, two.handler.commands)

    async def test_malformed_messages_are_counted_and_ignored(self) -> None:
        redis = self.server()
        one, two = await self.two(redis)
        for message in (b"", b"FOO", b"\xff", b"RDATA notes", b"POSITION notes x 1 2\nREPLICATE "):
            redis.command("PUBLISH", SERVER_NAME, message)
        await one.publish("a")
        await two.receives("one", ["a"])
        self.assertEqual((two.reader.bad, two.pubsub.connections), (4, 1))


class RedisLosses(OverRedis):
    async def test_loses_no_fact_over_a_restart_of_redis(self) -> None:
        redis = self.server()
        one, two = await self.two(redis)
        await one.publish("a")
        await two.receives("one", ["a"])
        redis.stop()
        await one.falls()
        await one.publish("b", "c")  # nobody can hear it
        redis.start()
        await one.stands(2)
        await one.publish("d")
        await two.stands(2)
        await two.receives("one", ["a", "b", "c", "d"])

    async def test_a_disconnected_subscriber_catches_up(self) -> None:
        """As Redis does to one whose output buffer is full."""
        redis = self.server()
        one, two = await self.two(redis)
        await one.publish("a")
        await two.receives("one", ["a"])
        two.bus.pause()  # so that what comes now is lost with its connection
        await one.publish("b", "c")
        redis.command("CLIENT", "KILL", "TYPE", "pubsub")
        two.bus.resume()
        await one.stands(2)
        await one.publish("d")
        await two.receives("one", ["a", "b", "c", "d"])
        self.assertEqual(two.pubsub.connections, 2)

    async def test_a_paused_subscriber_over_its_limit_is_reported_as_too_slow(self) -> None:
        redis = self.server("--client-output-buffer-limit", "pubsub", "4mb", "0", "0")
        one, two = await self.two(redis)
        two.bus.pause()
        texts = [str(n) * 200_000 for n in range(10, 70)]
        for count, text in enumerate(texts, 1):
            await one.publish(text)
            await self.site.happenings.until(lambda n=count: one.reader.echoes >= n)
        two.bus.resume()
        await two.receives("one", texts)
        self.assertEqual((one.pubsub.connections, two.pubsub.connections), (1, 2))
        self.assertEqual((one.pubsub.cut_off, two.pubsub.cut_off), (0, 1))
        (message,) = (line for line in two.logged if "CUT OFF FROM REDIS" in line)
        self.assertRegex(message, "this process had not read for .* client-output-buffer-limit")

    async def test_a_lost_publisher_connection_loses_no_fact(self) -> None:
        redis = self.server()
        one, two = await self.two(redis)
        redis.command("CLIENT", "KILL", "TYPE", "normal")
        await one.publish("a", "b")
        await two.receives("one", ["a", "b"])
        self.assertEqual((one.pubsub.cut_off, two.pubsub.cut_off), (0, 0))

    async def test_a_refused_message_aborts_the_connection(self) -> None:
        redis = self.server()
        one, two = await self.two(redis)
        await one.publish("a")
        await two.receives("one", ["a"])
        redis.command("ACL", "SETUSER", "default", "-publish")
        await one.publish("b")
        await one.falls()
        self.assertIn("NOPERM", one.logged[-1])
        redis.command("ACL", "SETUSER", "default", "+publish")
        await two.receives("one", ["a", "b"])

    async def test_a_server_that_hangs_is_noticed_within_15_seconds(self) -> None:
        redis = self.server()
        clock: Any = Clock()
        process = Process(self.site, "one", RedisAddress(port=redis.port), clock=clock)
        await process.start(self)
        redis.freeze()
        self.addCleanup(redis.thaw)
        for _ in range(3):
            clock.advance(4.9)
        await process.falls()
        self.assertIn("nothing was heard", process.logged[-1])

    async def test_disconnects_from_a_server_that_does_not_read(self) -> None:
        self.patch(redis_connection, "MAX_QUEUED_BYTES", 2**20)
        redis = self.server()
        one, two = await self.two(redis)
        redis.freeze()
        self.addCleanup(redis.thaw)
        texts = [str(n) * 250_000 for n in range(10, 60)]
        for text in texts:
            await one.publish(text)
        await one.falls()
        self.assertIn("wait, and it does not read", one.logged[-1])
        redis.thaw()
        await two.receives("one", texts)

    async def test_waits_for_room_while_the_server_does_not_read(
        self,
    ) -> None:
        redis = self.server()
        one, two = await self.two(redis)
        self.assertFalse(one.bus.full)
        await one.bus.room()
        texts = await self.fill(redis, one)
        room: list[None] = []
        Deferred.fromCoroutine(one.bus.room()).addCallback(room.append)
        self.assertEqual(room, [])
        redis.thaw()
        await two.receives("one", texts)
        await self.site.happenings.until(lambda: room == [None])
        self.assertFalse(one.bus.full)

    async def test_there_is_room_once_the_connection_is_lost(self) -> None:
        redis = self.server()
        one, _ = await self.two(redis)
        await self.fill(redis, one)
        room: list[None] = []
        Deferred.fromCoroutine(one.bus.room()).addCallback(room.append)
        one.bus.close(CloseReason.LOCAL)
        await one.falls()
        self.assertEqual((room, one.bus.full), ([None], False))

    async def fill(self, redis: RedisTestServer, process: Process) -> list[str]:
        """Say something until a server that does not read has had enough."""
        redis.freeze()
        self.addCleanup(redis.thaw)
        texts = []
        while not process.bus.full:
            self.assertLess(len(texts), 200)
            texts.append(str(len(texts) % 10) * 250_000)
            await process.publish(texts[-1])
            await turn()
        return texts

    async def start_recording_pongs(
        self, name: str, address: RedisAddress, clock: Any
    ) -> tuple[Process, list[object]]:
        """Start a process; also returns the PONGs of the connection on which it publishes."""
        pongs: list[object] = []
        happened = self.site.happenings.happened

        class PongRecorder(RedisPublisher):
            def replyReceived(self, reply: object) -> None:
                super().replyReceived(reply)
                if reply == b"PONG":  # and not how many heard a message
                    pongs.append(reply)
                    happened()

        patched = self.patch(redis_pubsub, "RedisPublisher", PongRecorder)
        process = await Process(self.site, name, address, clock=clock).start(self)
        patched.restore()
        return process, pongs

    async def test_pings_keep_an_idle_connection_alive(self) -> None:
        redis = self.server()
        clock: Any = Clock()
        address = RedisAddress(port=redis.port)
        silent, pongs = await self.start_recording_pongs("silent", address, clock)
        other = await Process(self.site, "other", address).start(self)
        for count in range(1, 21):
            clock.advance(4.9)
            await other.publish("x", "y")
            await silent.receives("other", ["x", "y"] * count)
            await self.site.happenings.until(lambda n=count: len(pongs) >= n)
        self.assertEqual((silent.pubsub.connections, silent.bus.is_connected), (1, True))


class RedisConnecting(OverRedis):
    """How one gets in."""

    timeout = 120  # sentinels take their time

    def stopped(self) -> int:
        """A port where nobody listens."""
        redis = RedisTestServer()
        redis.close()
        return redis.port

    async def in_sync(self, master: RedisTestServer) -> None:
        """Wait for the replica of a server."""
        while b"state=online" not in bytes(master.command("INFO", "replication")):  # type: ignore[call-overload]
            await self.site.scheduler.sleep(0.05)

    async def stands(self, address: RedisAddress) -> None:
        one = await Process(self.site, "one", address).start(self)
        two = await Process(self.site, "two", address).start(self)
        await one.publish("a")
        await two.receives("one", ["a"])

    async def test_connects_over_a_unix_socket_and_selects_a_database(self) -> None:
        await self.stands(RedisAddress(path=self.server().path, database=3))

    async def test_authenticates_with_a_password(self) -> None:
        redis = self.server("--requirepass", "sesame", password="sesame")
        await self.stands(RedisAddress(port=redis.port, password="sesame"))

    async def test_authenticates_as_an_acl_user(self) -> None:
        redis = self.server()
        rules = ("on", ">sesame", "resetchannels", f"&{SERVER_NAME}", f"&{SERVER_NAME}/*")
        allowed = ("-@all", "+@connection", "+publish", "+subscribe")
        self.assertEqual(redis.command("ACL", "SETUSER", "synrepl", *rules, *allowed), b"OK")
        redis.command("ACL", "SETUSER", "default", "off")
        await self.stands(RedisAddress(port=redis.port, username="synrepl", password="sesame"))

    async def test_connects_over_tls(self) -> None:
        redis = self.server()
        folder = Path(self.mktemp())
        folder.mkdir()
        port = reactor.listenSSL(
            0, ProxyFactory("127.0.0.1", redis.port), certificate(folder), interface="127.0.0.1"
        )
        self.addCleanup(port.stopListening)
        where = {"host": "localhost", "port": port.getHost().port, "tls": True}
        stranger = Process(self.site, "stranger", RedisAddress(**where))
        stranger.pubsub.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(stranger.pubsub.stop()))
        await self.site.happenings.until(lambda: bool(stranger.logged))
        self.assertIn("certificate verify failed", stranger.logged[0])
        await self.stands(RedisAddress(**where, ca_file=folder / "ca.pem"))

    async def test_sentinels_know_where_the_master_is(self) -> None:
        master = self.server()
        replica = self.server("--replicaof", "127.0.0.1", str(master.port))
        sentinel = RedisTestServer(sentinel=f"sentinel monitor ours 127.0.0.1 {master.port} 1")
        self.addCleanup(sentinel.close)
        await self.in_sync(master)
        away = RedisAddress(port=self.stopped())
        where = Sentinels([away, RedisAddress(port=sentinel.port)], "ours", RedisAddress())
        one = await Process(self.site, "one", where).start(self)
        two = await Process(self.site, "two", where).start(self)
        await one.publish("a")
        await two.receives("one", ["a"])
        while sentinel.command("SENTINEL", "FAILOVER", "ours") != b"OK":
            await self.site.scheduler.sleep(0.05)  # until it knows the replica, too
        await one.falls()
        await one.publish("b")
        await one.stands(2)
        await one.publish("c")
        await two.receives("one", ["a", "b", "c"])
        role = replica.command("ROLE")
        assert isinstance(role, list)
        self.assertEqual(role[0], b"master")

    async def test_refuses_a_replica(self) -> None:
        replica = self.server("--replicaof", "127.0.0.1", str(self.stopped()))
        address = RedisAddress(port=replica.port, must_be_master=True)
        process = Process(self.site, "one", address)
        process.pubsub.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(process.pubsub.stop()))
        await self.site.happenings.until(lambda: bool(process.logged))
        self.assertIn("it is a replica", process.logged[0])

    def test_refuses_unusable_certificates(self) -> None:
        for content in (b"", b"-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n"):
            path = Path(self.mktemp())
            path.write_bytes(content)
            with self.assertRaises(BadCertificates):
                RedisAddress(tls=True, ca_file=path).endpoint(reactor)
        with self.assertRaises(BadCertificates):
            RedisAddress(tls=True, ca_file=Path("nowhere.pem")).endpoint(reactor)

    async def test_names_a_server_that_is_not_redis(self) -> None:
        class Chatty(Protocol):
            def connectionMade(self) -> None:
                self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")  # type: ignore[call-arg]

        port = reactor.listenTCP(0, Factory.forProtocol(Chatty), interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        process = Process(self.site, "one", RedisAddress(port=port.getHost().port))
        process.pubsub.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(process.pubsub.stop()))
        await self.site.happenings.until(lambda: len(process.logged) > 1)
        self.assertIn("does not speak as Redis does", process.logged[0])

    async def test_retries_a_wrong_password_and_never_shows_it(self) -> None:
        redis = self.server()
        redis.command("ACL", "SETUSER", "synrepl", "on", ">new", "&*", "+@all")
        address = RedisAddress(port=redis.port, username="synrepl", password="sesame")
        process = Process(self.site, "one", address)
        process.pubsub.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(process.pubsub.stop()))
        await self.site.happenings.until(lambda: len(process.logged) > 1)
        self.assertIn("WRONGPASS", process.logged[0])
        redis.command("ACL", "SETUSER", "synrepl", ">sesame")
        await process.stands()
        self.assertNotIn("sesame", repr(address) + str(process.logged))


def certificate(folder: Path) -> Any:
    """A server's side of TLS, for localhost; ``ca.pem`` is what clients have to trust.

    Both parts are in the folder, too: ``ca.pem`` and ``key.pem``.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    (folder / "ca.pem").write_bytes(pem)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "key.pem").write_bytes(private)
    return ssl.PrivateCertificate.loadPEM(private + pem).options()

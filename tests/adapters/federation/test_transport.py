"""Requests over real TLS, with certificates that the tests make."""

from __future__ import annotations

import errno
import json
from datetime import timedelta
from typing import Any
from unittest import mock

from signedjson.key import get_verify_key
from twisted.internet.defer import CancelledError, Deferred

from synrepl.adapters.federation import endpoints, exchange, transport
from synrepl.adapters.federation.spool import CannotSpool
from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.federation.discovery import ServiceRecord
from synrepl.federation.errors import AddressRefused, AnswerTooLarge, DestinationAway
from synrepl.federation.requests import FederationRequest
from synrepl.federation.x_matrix import parse_x_matrix, verify_request
from synrepl.rooms import ServerKey
from tests.adapters.federation.authorities import Authority
from tests.adapters.federation.transport_case import (
    ORIGIN,
    ScriptedFactory,
    TransportCase,
)
from tests.adapters.raw_http_client import reactor, turn

OK = b"HTTP/1.1 200 OK\r\n"


def ok(request: HttpRequest) -> HttpAnswer:
    return json_answer({"uri": request.uri})


class Signed(TransportCase):
    async def test_a_request_arrives_as_it_was_signed(self) -> None:
        received: list[HttpRequest] = []

        def handle(request: HttpRequest) -> HttpAnswer:
            received.append(request)
            return json_answer({"received": True}, 404)

        name = f"localhost:{self.serve(handle)}"
        content = '{"a":"é"}'.encode()
        request = FederationRequest(
            "PUT", name, "/_matrix/x/%21a", [("b", "c d"), ("b", "é&")], content
        )
        answer = await self.passing(Deferred.fromCoroutine(self.transport.send(request)))
        self.assertEqual((answer.status, answer.body.read()), (404, b'{"received":true}'))
        answer.body.close()
        (arrived,) = received
        self.assertEqual(arrived.uri, "/_matrix/x/%21a?b=c+d&b=%C3%A9%26")
        self.assertEqual((arrived.method, arrived.body), ("PUT", content))
        self.assertEqual(arrived.header("Host"), name)
        self.assertEqual(arrived.header("Content-Type"), "application/json")
        header = arrived.header("Authorization")
        assert header is not None
        signature = parse_x_matrix([header], name)
        self.assertEqual(signature.origin, ORIGIN)
        key = ServerKey(get_verify_key(self.key))
        verify_request(signature, key, "PUT", arrived.uri, name, content, 0)

    async def test_a_request_for_keys_is_not(self) -> None:
        received: list[HttpRequest] = []

        def handle(request: HttpRequest) -> HttpAnswer:
            received.append(request)
            return json_answer({})

        await self.send(f"localhost:{self.serve(handle)}", is_signed=False)
        self.assertIsNone(received[0].header("Authorization"))

    async def test_connections_are_used_again_and_closed_when_they_are_idle(self) -> None:
        name = f"localhost:{self.serve(ok)}"
        for _ in range(3):
            await self.send(name)
        (server,) = self.served
        self.assertEqual(len(server.connections), 1)
        self.clock.advance(exchange.IDLE_S)
        while server.connections:
            await turn()

    async def test_connections_to_few_servers_are_kept(self) -> None:
        self.patch(exchange, "MAX_SERVERS", 2)
        names = [f"localhost:{self.serve(ok)}" for _ in range(4)]
        for name in names:
            await self.send(name)
        while sum(len(server.connections) for server in self.served) > 2:
            await turn()
        self.assertEqual([len(server.connections) for server in self.served], [0, 0, 1, 1])

    async def test_a_request_is_repeated_when_its_connection_was_just_closed(self) -> None:
        answers = [0]

        def handle(request: HttpRequest) -> HttpAnswer:
            answers[0] += 1
            return json_answer({"count": answers[0]})

        name = f"localhost:{self.serve(handle)}"
        first = ScriptedFactory(b"", closes=True)
        refusing = self.serve(first)
        with self.assertRaisesRegex(DestinationAway, "closed the connection"):
            await self.send(f"localhost:{refusing}")
        self.assertEqual(len(first.made), 2)
        answer = await self.send(name)
        self.assertEqual(json.loads(answer.body.read()), {"count": 1})

    async def test_many_requests_to_one_server_take_turns(self) -> None:
        waiting: list[Deferred[HttpAnswer]] = []

        def handle(request: HttpRequest) -> Deferred[HttpAnswer]:
            waiting.append(Deferred())
            return waiting[-1]

        name = f"localhost:{self.serve(handle)}"
        count = transport.CONCURRENT + 3
        sent = [self.begin(name) for _ in range(count)]
        while len(waiting) < transport.CONCURRENT:
            await turn()
        for _ in range(5):
            await turn()
        self.assertEqual(len(waiting), transport.CONCURRENT)
        while not all(each.called for each in sent):
            for each in waiting:
                if not each.called:
                    each.callback(json_answer({}))
            await turn()
        self.assertEqual(len(waiting), count)


class Certificates(TransportCase):
    async def refused(self, name: str, reason: str) -> None:
        with self.assertRaisesRegex(DestinationAway, reason):
            await self.send(name)

    async def test_for_the_name_or_the_address(self) -> None:
        port = self.serve(ok)
        for host in ("localhost", "127.0.0.1"):
            self.assertEqual((await self.send(f"{host}:{port}")).status, 200)

    async def test_for_another_name(self) -> None:
        port = self.serve(ok, ["other.example", "10.0.0.1"])
        await self.refused(f"localhost:{port}", "it is for .*other.example")
        await self.refused(f"127.0.0.1:{port}", "it is for .*10.0.0.1")

    async def test_for_the_address_of_a_name(self) -> None:
        port = self.serve(ok, ["127.0.0.1"])
        await self.refused(f"localhost:{port}", "it is for 127.0.0.1")

    async def test_for_nothing(self) -> None:
        await self.refused(f"localhost:{self.serve(ok, [])}", "names no server")

    async def test_that_has_expired_or_is_not_valid_yet(self) -> None:
        day = timedelta(days=1)
        expired = self.authority.certificate(["localhost"], begins=-2 * day, ends=-day)
        await self.refused(f"localhost:{self.serve(ok, certificate=expired)}", "it has expired")
        early = self.authority.certificate(["localhost"], begins=day, ends=2 * day)
        await self.refused(f"localhost:{self.serve(ok, certificate=early)}", "not valid yet")

    async def test_of_another_authority(self) -> None:
        other = Authority(self.folder, "Others").certificate(["localhost"])
        await self.refused(f"localhost:{self.serve(ok, certificate=other)}", "not trusted")

    async def test_that_is_signed_by_itself(self) -> None:
        own = self.authority.certificate(["localhost"], self_signed=True)
        await self.refused(f"localhost:{self.serve(ok, certificate=own)}", "signed by itself")

    async def test_none_at_all(self) -> None:
        factory = ScriptedFactory(OK + b"Content-Length: 0\r\n\r\n")
        port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(self._stop, port, factory)
        await self.refused(
            f"localhost:{port.getHost().port}",
            "TLS failed: (record layer failure|wrong version number)",
        )

    async def test_of_the_delegated_name_is_what_counts(self) -> None:
        port = self.serve(ok, ["b.example"])
        self.names.addresses_of["b.example"] = ["127.0.0.1"]
        self.assertEqual((await self.send(f"b.example:{port}")).status, 200)
        self.names.addresses_of["c.example"] = ["127.0.0.1"]
        await self.refused(f"c.example:{port}", "it is for b.example")


class Limits(TransportCase):
    """Whatever a server sends."""

    def scripted(self, send: bytes, closes: bool = False) -> tuple[str, ScriptedFactory]:
        factory = ScriptedFactory(send, closes)
        return f"localhost:{self.serve(factory)}", factory

    async def asked(self, factory: ScriptedFactory) -> None:
        """Wait until the server has received something, and for some turns more."""
        while not factory.made or not factory.made[0].is_asked:
            await turn()
        await self.turns()

    async def test_an_answer_announced_as_too_large(self) -> None:
        name, factory = self.scripted(OK + b"Content-Length: 1001\r\n\r\n")
        with self.assertRaisesRegex(AnswerTooLarge, "of localhost.* more than 1000 bytes"):
            await self.send(name, max_bytes=1000)
        while not factory.made[0].is_lost:
            await turn()

    async def test_an_answer_of_500_mebibytes(self) -> None:
        chunk = b"10000\r\n" + b"a" * 65536 + b"\r\n"
        send = OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 100
        name, factory = self.scripted(send)
        with self.assertRaises(AnswerTooLarge):
            await self.send(name, max_bytes=1_000_000)
        while not factory.made[0].is_lost:
            await turn()
        self.assertEqual(self.client.usage.in_files, 0)

    async def test_half_an_answer(self) -> None:
        for send in (
            OK + b"Content-Length: 1000\r\n\r\n" + b"a" * 500,
            OK + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n" + b"a" * 500,
            OK + b"Content-Type: te",
            b"HTTP/1.1 2",
            b"",
        ):
            name, _ = self.scripted(send, closes=True)
            with self.assertRaisesRegex(DestinationAway, "closed the connection"):
                await self.send(name)

    async def test_what_is_no_http(self) -> None:
        for send in (b"SSH-2.0-x\r\n\r\n", b"\0" * 100 + b"\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"):
            name, _ = self.scripted(send, closes=True)
            with self.assertRaises(DestinationAway):
                await self.send(name)

    async def test_a_head_without_end(self) -> None:
        for send in (
            OK + b"X: " + b"a" * 10_000_000,
            OK + b"X: a\r\n" * 1_000_000,
            b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000,
            b"HTTP/1.1 103 Early\r\n\r\n" + OK + b"X: a\r\n" * 1_000_000,
        ):
            name, factory = self.scripted(send)
            with self.assertRaisesRegex(
                DestinationAway, f"longer than {endpoints.MAX_HEAD}|line of its head is too long"
            ):
                await self.send(name)
            while not factory.made[0].is_lost:
                await turn()

    async def test_a_head_after_others_is_read(self) -> None:
        end = b"Content-Length: 2\r\n\r\n{}"
        name, _ = self.scripted(
            b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"X: " + b"a" * 9000 + b"\r\n" + end
        )
        answer = await self.send(name)
        self.assertEqual((answer.status, answer.body.read()), (200, b"{}"))

    async def test_an_answer_that_is_compressed(self) -> None:
        name, _ = self.scripted(OK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}")
        with self.assertRaisesRegex(DestinationAway, "encoded as 'gzip'"):
            await self.send(name)

    async def test_an_answer_with_a_coding_that_is_none(self) -> None:
        name, _ = self.scripted(OK + b"Content-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}")
        self.assertEqual((await self.send(name)).body.read(), b"{}")

    async def test_redirections_are_not_followed(self) -> None:
        name, _ = self.scripted(
            b"HTTP/1.1 302 Found\r\nLocation: https://127.0.0.1/\r\nContent-Length: 0\r\n\r\n"
        )
        self.assertEqual((await self.send(name)).status, 302)

    async def test_no_answer(self) -> None:
        name, factory = self.scripted(b"")
        sent = self.begin(name, timeout_s=30.0)
        await self.asked(factory)
        await self.turns()
        self.clock.advance(29)
        self.assertFalse(sent.called)
        self.clock.advance(1)
        with self.assertRaisesRegex(DestinationAway, "within 30 s"):
            await sent

    async def test_no_head_in_time_although_the_whole_may_take_longer(self) -> None:
        name, factory = self.scripted(b"")
        request = {"timeout_s": 600.0, "head_timeout_s": 60.0}
        sent = self.begin(name, **request)
        await self.asked(factory)
        await self.turns()
        self.clock.advance(60)
        with self.assertRaisesRegex(DestinationAway, "an answer did not arrive within 60 s"):
            await sent

    async def test_one_byte_a_second(self) -> None:
        name, factory = self.scripted(OK + b"Content-Length: 1000000\r\n\r\n")
        sent = self.begin(name, timeout_s=600.0)
        await self.asked(factory)
        await self.turns()
        factory.made[0].transport.write(b"a")
        while not self.client.usage.total:
            await turn()
        for _ in range(int(exchange.GRACE_S)):
            self.assertFalse(sent.called)
            factory.made[0].transport.write(b"a")
            await self.turns()
            self.clock.advance(1)
        with self.assertRaisesRegex(DestinationAway, "too slowly: [0-9]+ bytes in 20 s"):
            await self.passing(sent)
        while not factory.made[0].is_lost:
            await turn()

    async def test_a_slow_but_steady_answer_is_received(self) -> None:
        size = 100 * exchange.RATE
        name, factory = self.scripted(OK + b"Content-Length: %d\r\n\r\n" % size)
        sent = self.begin(name, timeout_s=600.0)
        await self.asked(factory)
        for _ in range(50):
            await self.turns()
            factory.made[0].transport.write(b"a" * (2 * exchange.RATE))
            await self.turns()
            self.clock.advance(2)
        answer = await sent
        self.assertEqual(answer.body.size, size)

    async def test_closing_ends_what_is_under_way_and_blames_nobody(self) -> None:
        name, factory = self.scripted(b"")
        sent = self.begin(name)
        await self.asked(factory)
        await self.client.close()
        await self.assertFailure(sent, CancelledError)
        await self.assertFailure(self.begin(name), CancelledError)
        while not factory.made[0].is_lost:
            await turn()

    async def test_a_cancelled_request_leaves_nothing(self) -> None:
        name, factory = self.scripted(OK + b"Content-Length: 9000000\r\n\r\n" + b"a" * 1_000_000)
        sent = self.begin(name)
        while self.client.usage.in_files < 500_000:
            await turn()
        sent.addErrback(lambda failure: None)
        sent.cancel()
        while not factory.made[0].is_lost:
            await turn()
        self.assertEqual(self.client.usage.in_files, 0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    async def test_when_to_come_back(self) -> None:
        for header, seconds in ((b"120", 120), (b"x", 0), (b"9" * 50, 0)):
            head = b"HTTP/1.1 429 X\r\nContent-Length: 0\r\nRetry-After: " + header
            name, _ = self.scripted(head + b"\r\n\r\n")
            answer = await self.send(name)
            self.assertEqual((answer.status, answer.retry_after_s), (429, seconds))


class Spooled(TransportCase):
    async def answer_of(self, size: int) -> Any:
        data = b"0123456789" * (size // 10)
        port = self.serve(lambda request: HttpAnswer(200, data))
        return await self.send(f"localhost:{port}")

    async def test_a_small_answer_is_in_memory(self) -> None:
        answer = await self.answer_of(1000)
        self.assertEqual((answer.body.size, self.client.usage.in_files), (1000, 0))
        self.assertEqual(answer.body.open().read(7), b"0123456")
        self.assertEqual(answer.body.open().read(), answer.body.read())

    async def test_a_large_answer_is_in_a_file_without_a_name(self) -> None:
        self.transport = self.make_transport(spool_dir=self.folder)
        before = set(self.folder.iterdir())
        answer = await self.answer_of(3_000_000)
        self.assertEqual(self.client.usage.in_files, 3_000_000)
        self.assertEqual(
            set(self.folder.iterdir()) - before, set(self.folder.glob("[0-9]*.pem")) - before
        )
        self.assertRaises(AnswerTooLarge, answer.body.read)
        file = answer.body.open()
        file.seek(2_999_990)
        self.assertEqual(file.read(), b"0123456789")
        answer.body.close()
        answer.body.close()
        self.assertEqual(self.client.usage.in_files, 0)
        self.assertEqual(self.client.usage.total, 3_000_000)

    async def test_a_full_disk_is_not_the_fault_of_the_server(self) -> None:
        full = OSError(errno.ENOSPC, "No space left on device")
        with (
            mock.patch("tempfile.SpooledTemporaryFile.write", side_effect=full),
            self.assertRaisesRegex(CannotSpool, "No space left"),
        ):
            await self.answer_of(1000)


class Addresses(TransportCase):
    allowed = ()

    async def refused(self, name: str, address: str) -> None:
        with self.assertRaisesRegex(AddressRefused, f"is at {address}, which is no public"):
            await self.send(name)

    async def test_of_this_machine_are_refused_however_they_are_named(self) -> None:
        port = self.serve(ok)
        self.names.addresses_of["a.example"] = ["127.0.0.1"]
        self.names.addresses_of["b.example"] = ["::ffff:127.0.0.1"]
        await self.refused(f"127.0.0.1:{port}", "127.0.0.1")
        await self.refused(f"localhost:{port}", "127.0.0.1")
        await self.refused(f"a.example:{port}", "127.0.0.1")
        await self.refused(f"b.example:{port}", "::ffff:127.0.0.1|::ffff:7f00:1")
        await self.refused(f"[::ffff:127.0.0.1]:{port}", "::ffff:127.0.0.1|::ffff:7f00:1")
        self.assertEqual(self.client.usage.total, 0)

    async def test_behind_a_service_are_refused(self) -> None:
        port = self.serve(ok)
        self.names.services["_matrix-fed._tcp.a.example"] = [
            ServiceRecord(0, 0, "localhost", port),
            ServiceRecord(1, 0, "nowhere.example", port),
        ]
        await self.refused("a.example", "127.0.0.1")

    async def test_the_address_that_was_checked_is_the_one_that_is_used(self) -> None:
        """A name is looked up once: a second look-up could have another answer."""
        self.names.addresses_of["a.example"] = ["127.0.0.1"]
        port = self.serve(ok)
        await self.refused(f"a.example:{port}", "127.0.0.1")
        self.assertEqual(self.names.asked.count("a.example"), 2)  # A and AAAA


class Away(TransportCase):
    async def test_nobody_listens(self) -> None:
        with self.assertRaisesRegex(DestinationAway, "refused") as caught:
            await self.send("localhost:1")
        self.assertIn("localhost:1 did not answer GET /path", str(caught.exception))

    async def test_there_is_no_such_host(self) -> None:
        with self.assertRaisesRegex(DestinationAway, "has no address of nowhere.example"):
            await self.send("nowhere.example:1")

    async def test_the_dns_is_broken(self) -> None:
        self.names.broken.add("a.example")
        with self.assertRaisesRegex(DestinationAway, "DNS did not answer"):
            await self.send("a.example:1")
        self.flushLoggedErrors(RuntimeError)

    async def test_there_cannot_be_such_a_server(self) -> None:
        for name in ("a b", "127.1", "a.example:0", ""):
            with self.assertRaises(DestinationAway):
                await self.send(name)

    async def test_another_address_of_the_host_answers(self) -> None:
        port = self.serve(ok)
        # Nothing listens on the first one.
        self.names.addresses_of["localhost.example"] = ["127.0.0.9", "127.0.0.1"]
        files = self.authority.certificate(["localhost.example"])
        port = self.serve(ok, certificate=files)
        self.assertEqual((await self.send(f"localhost.example:{port}")).status, 200)

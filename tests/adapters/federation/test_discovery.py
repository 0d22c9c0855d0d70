"""Servers are found by .well-known documents, SRV records and names, with real look-ups on loopback."""

from __future__ import annotations

import json
from pathlib import Path

from twisted.internet.defer import Deferred

from synrepl.adapters.federation import well_known
from synrepl.adapters.federation.names import (
    NameNotFound,
    NameResolver,
    NamesUnavailable,
    SystemHosts,
    SystemResolver,
)
from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.federation.discovery import MAX_WELL_KNOWN, ServiceRecord
from synrepl.federation.errors import DestinationAway
from tests.adapters.federation.transport_case import ScriptedFactory, TransportCase
from tests.adapters.raw_http_client import turn

HOST = "a.example"


def hosts_asked(requests: list[HttpRequest]) -> list[str | None]:
    """The ``Host`` of each request."""
    return [request.header("Host") for request in requests]


class Services(TransportCase):
    def setUpNames(self, port: int, *more: ServiceRecord) -> None:
        self.names.hosts[HOST] = ["127.0.0.1"]
        self.names.addresses_of["b.example"] = ["127.0.0.1"]
        service = f"_matrix-fed._tcp.{HOST}"
        self.names.services[service] = [ServiceRecord(0, 0, "b.example", port), *more]

    async def test_lead_to_the_server_with_the_certificate_of_the_name(self) -> None:
        received: list[HttpRequest] = []

        def handle(request: HttpRequest) -> HttpAnswer:
            received.append(request)
            return json_answer({})

        self.setUpNames(self.serve(handle, [HOST]))
        self.assertEqual((await self.send(HOST)).status, 200)
        self.assertEqual(hosts_asked(received), [HOST])

    async def test_with_the_certificate_of_their_target_are_refused(self) -> None:
        self.setUpNames(self.serve(lambda request: json_answer({}), ["b.example"]))
        with self.assertRaisesRegex(DestinationAway, "it is for b.example"):
            await self.send(HOST)

    async def test_the_next_one_is_used_if_the_first_is_away(self) -> None:
        port = self.serve(lambda request: json_answer({}), [HOST])
        self.setUpNames(1, ServiceRecord(1, 0, "b.example", port))
        self.assertEqual((await self.send(HOST)).status, 200)

    async def test_are_remembered_for_some_time_unless_they_fail(self) -> None:
        port = self.serve(lambda request: json_answer({}), [HOST])
        self.setUpNames(port)
        for _ in range(3):
            await self.send(HOST)
        asked = self.names.asked.count(f"_matrix-fed._tcp.{HOST}")
        self.assertEqual(asked, 1)
        self.clock.advance(600)
        await self.send(HOST)
        self.assertEqual(self.names.asked.count(f"_matrix-fed._tcp.{HOST}"), 2)

    async def test_are_asked_for_again_once_a_server_is_away(self) -> None:
        self.setUpNames(1)
        for count in (1, 2):
            with self.assertRaises(DestinationAway):
                await self.send(HOST)
            self.assertEqual(self.names.asked.count(f"_matrix-fed._tcp.{HOST}"), count)

    async def test_a_dns_server_that_fails_is_not_taken_for_no_record(self) -> None:
        self.setUpNames(1)
        self.names.broken.add(f"_matrix-fed._tcp.{HOST}")
        with self.assertRaisesRegex(DestinationAway, "DNS did not answer"):
            await self.send(HOST)
        self.flushLoggedErrors(RuntimeError)

    async def test_a_dns_server_that_is_silent_delays_nobody_else(self) -> None:
        self.names.silent.add("_matrix-fed._tcp.silent.example")
        self.names.hosts["silent.example"] = ["127.0.0.1"]
        silent = self.begin("silent.example")
        self.setUpNames(self.serve(lambda request: json_answer({}), [HOST]))
        answer = self.begin(HOST)
        while not answer.called:
            await turn()
        self.assertFalse(silent.called)
        with self.assertRaisesRegex(DestinationAway, "no name server answered in time"):
            await self.passing(silent)


class WellKnown(TransportCase):
    """The port of HTTPS is another one here, since that of the tests' servers cannot be chosen."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.names.hosts[HOST] = ["127.0.0.1"]
        self.names.hosts["b.example"] = ["127.0.0.1"]
        self.requests: list[HttpRequest] = []
        self.documents: list[HttpAnswer] = []
        self.target = self.serve(lambda request: json_answer({}), ["b.example", HOST])
        self.well_known_port = self.serve(self.document, [HOST])
        self.transport = self.make_transport()

    def document(self, request: HttpRequest) -> HttpAnswer:
        """The next document; the last one again and again."""
        self.requests.append(request)
        return self.documents[0] if len(self.documents) == 1 else self.documents.pop(0)

    def delegating(self, *headers: tuple[str, str]) -> HttpAnswer:
        """A document that delegates to the target."""
        body = json.dumps({"m.server": f"b.example:{self.target}"}).encode()
        return HttpAnswer(200, body, headers=headers)

    async def delegated(self) -> str | None:
        """What the host delegates to."""
        return await self.passing(Deferred.fromCoroutine(self.well_known.delegated(HOST)))

    async def test_delegates(self) -> None:
        self.documents = [self.delegating()]
        self.assertEqual((await self.send(HOST)).status, 200)
        (request,) = self.requests
        self.assertEqual(request.uri, "/.well-known/matrix/server")
        self.assertIsNone(request.header("Authorization"))

    async def test_is_fetched_once_for_all_who_wait(self) -> None:
        self.documents = [self.delegating()]
        asked = [Deferred.fromCoroutine(self.well_known.delegated(HOST)) for _ in range(5)]
        for each in asked:
            self.assertEqual(await self.passing(each), f"b.example:{self.target}")
        self.assertEqual(len(self.requests), 1)

    async def test_is_remembered_and_fetched_again_in_time(self) -> None:
        self.documents = [self.delegating(("Cache-Control", "max-age=1000"))]
        await self.delegated()
        self.clock.advance(790)
        await self.delegated()
        self.assertEqual(len(self.requests), 1)
        self.clock.advance(20)
        self.assertEqual(await self.delegated(), f"b.example:{self.target}")  # without waiting
        while len(self.requests) < 2:
            await turn()

    async def test_without_one_its_own_port_is_asked(self) -> None:
        for answer in (
            json_answer({}, 404),
            json_answer({"m.server": 1}),
            HttpAnswer(200, b"<html>", "text/html"),
            HttpAnswer(200, b'{"m.server": "b.example:1"}' + b" " * MAX_WELL_KNOWN),
            HttpAnswer(302, b"", headers=[("Location", "http://b.example/")]),
        ):
            self.documents = [answer]
            self.transport = self.make_transport()
            self.assertIsNone(await self.delegated())
            self.assertIsNone(await self.delegated())
        self.assertEqual(len(self.requests), 5)

    async def test_one_that_fails_later_counts_on(self) -> None:
        self.documents = [self.delegating(), json_answer({}, 503)]
        name = await self.delegated()
        self.clock.advance(86_400)
        self.assertEqual(await self.delegated(), name)
        self.assertEqual(len(self.requests), 2)

    async def test_redirections_are_followed(self) -> None:
        here = f"https://{HOST}:{self.well_known_port}"
        for location in (f"{here}/other?x=y", "/other?x=y"):
            self.documents = [
                HttpAnswer(301, b"", headers=[("Location", location)]),
                self.delegating(),
            ]
            self.requests.clear()
            self.transport = self.make_transport()
            if location.startswith("/"):
                # Relative to the URL, whose port is the default one.
                location = f"{here}{location}"
            self.assertEqual(await self.delegated(), f"b.example:{self.target}")
            self.assertEqual(self.requests[1].uri, "/other?x=y")

    async def test_redirections_without_end_are_not(self) -> None:
        here = f"https://{HOST}:{self.well_known_port}"
        self.documents = [HttpAnswer(302, b"", headers=[("Location", f"{here}/again")])]
        self.assertIsNone(await self.delegated())
        self.assertEqual(len(self.requests), well_known.MAX_REDIRECTS + 1)

    async def test_nor_are_those_to_anything_but_https(self) -> None:
        for location in (
            "http://a.example/x",
            "ftp://a.example",
            "https://",
            "https://a b/",
            "",
            "https://[::1",
            "https://user:x@b.example/",
            "https://127.1/",
        ):
            self.documents = [HttpAnswer(302, b"", headers=[("Location", location)])]
            self.requests.clear()
            self.transport = self.make_transport()
            self.assertIsNone(await self.delegated(), location)
            self.assertLessEqual(len(self.requests), well_known.MAX_REDIRECTS + 1)

    async def test_nor_those_to_plain_http_even_where_there_is_https(self) -> None:
        location = f"http://{HOST}:{self.well_known_port}/other"
        self.documents = [
            HttpAnswer(302, b"", headers=[("Location", location)]),
            self.delegating(),
        ]
        self.assertIsNone(await self.delegated())
        self.assertEqual(len(self.requests), 1)

    async def test_a_slow_one_ends(self) -> None:
        factory = ScriptedFactory(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{")
        self.well_known_port = self.serve(factory, [HOST])
        self.transport = self.make_transport()
        self.assertIsNone(await self.delegated())


class PrivateWellKnown(TransportCase):
    allowed = ("127.0.0.2/32",)

    async def test_redirections_to_this_machine_are_refused(self) -> None:
        """A public server (127.0.0.2 here) redirects to one that is not."""
        asked: list[HttpRequest] = []

        def inside(request: HttpRequest) -> HttpAnswer:
            asked.append(request)
            return json_answer({"m.server": "evil.example"})

        port = self.serve(inside, ["127.0.0.1", "localhost"])
        self.names.hosts[HOST] = ["127.0.0.2"]
        for target in (
            f"https://127.0.0.1:{port}/",
            f"https://localhost:{port}/",
            "https://10.0.0.1/",
        ):
            location = [("Location", target)]
            self.well_known_port = self.serve(
                lambda request, to=location: HttpAnswer(302, b"", headers=to),
                [HOST],
                interface="127.0.0.2",
            )
            self.transport = self.make_transport()
            found = Deferred.fromCoroutine(self.well_known.delegated(HOST))
            self.assertIsNone(await self.passing(found))
            self.assertIn("is no public address", self.messages[-1])
        self.assertEqual(asked, [])


class TheSystem(TransportCase):
    async def test_its_hosts_file(self) -> None:
        path = Path(self.mktemp())
        path.write_text("127.0.0.5 one.example two.EXAMPLE # three.example\n::1 one.example\nx y\n")
        hosts = SystemHosts(str(path))
        self.assertEqual(hosts.addresses("one.example"), ["127.0.0.5", "::1"])
        self.assertEqual(hosts.addresses("two.example"), ["127.0.0.5"])
        self.assertEqual(hosts.addresses("three.example"), [])
        self.assertEqual(SystemHosts("missing").addresses("one.example"), [])

    async def test_its_name_servers(self) -> None:
        path = Path(self.mktemp())
        path.write_text("# x\nnameserver nonsense\nsearch example\nnameserver 127.0.0.1\n")
        resolver = SystemResolver(self.reactor, str(path))
        names = NameResolver(resolver, self.names)
        # Nothing listens on the port of the DNS of this machine, or something without this name.
        asked = Deferred.fromCoroutine(names.addresses("no.such.name.example"))
        with self.assertRaises((NamesUnavailable, NameNotFound)):
            await self.passing(asked)

    async def test_an_address_is_its_own(self) -> None:
        names = NameResolver(self.names.resolver(self.reactor), self.names)
        for address in ("192.0.2.1", "2001:db8::1"):
            self.assertEqual(await names.addresses(address), [address])
        self.assertEqual(self.names.asked, [])

    async def test_addresses_of_both_kinds(self) -> None:
        names = NameResolver(self.names.resolver(self.reactor), self.names)
        self.names.addresses_of["a.example"] = ["192.0.2.1", "2001:db8::1"]
        found = await self.passing(Deferred.fromCoroutine(names.addresses("a.example")))
        self.assertEqual(found, ["2001:db8::1", "192.0.2.1"])
        self.names.addresses_of["b.example"] = [f"192.0.2.{number}" for number in range(30)]
        found = await self.passing(Deferred.fromCoroutine(names.addresses("b.example")))
        self.assertEqual(len(found), 10)

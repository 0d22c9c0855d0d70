"""Which names a listener answers to, and which pages may send it something."""

# mypy: disable-error-code="no-untyped-call"
# (trial's assertions have no types)

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase
from twisted.web.http_headers import Headers

from synrepl.adapters.http.hosts import HostNames, WrongHost
from synrepl.adapters.http.messages import BadHeader
from tests.adapters.raw_http_client import Reply, request
from tests.adapters.test_http_server import HttpServerCase


class HostChecks(HttpServerCase):
    """Over a real connection, which comes from 127.0.0.1 and goes there."""

    hosts = ("Shop.Example",)

    async def with_host(self, *lines: str, path: str = "/public", version: str = "1.1") -> Reply:
        head = [f"GET {path} HTTP/{version}", *lines, "", ""]
        return await self.ask("\r\n".join(head).encode())

    async def test_accepts_its_own_names(self) -> None:
        port = self.listening.port
        for host in ("localhost", "LocalHost.", "127.0.0.1", "127.8.9.1", "[::1]", "shop.example",
                     "SHOP.example.", "[::ffff:127.0.0.1]"):  # fmt: skip
            for suffix in ("", ":", f":{port}", ":1"):
                reply = await self.with_host(f"Host: {host}{suffix}")
                self.assertEqual(reply.status, 200, host + suffix)

    async def test_refuses_other_names(self) -> None:
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1",
                     "0.0.0.0", "[2001:db8::1]", "shop.example.evil", "xn--localhost-1", "127.1",
                     "2130706433", "localhost:80.evil.example"):  # fmt: skip
            for path in ("/public", "/now", "/echo/w", "/nope"):
                reply = await self.with_host(f"Host: {host}", path=path)
                wanted = (400, "BadHeader") if host.startswith("localhost:") else (421, "WrongHost")
                self.assertEqual((reply.status, reply.json["error"]), wanted, host)
        message = (await self.with_host("Host: evil.example:80")).json["message"]
        self.assertIn("'evil.example'", message)
        self.assertIn("'allowed_hosts' of 'http'", message)

    async def test_refuses_a_malformed_host(self) -> None:
        for host in ("", "a b", "evil.example/localhost", "user@localhost", "[localhost]", "lo\tcal",
                     "localhost, evil.example", "localhost:x", "é"):  # fmt: skip
            reply = await self.with_host(f"Host: {host}")
            self.assertEqual((reply.status, reply.json["error"]), (400, "BadHeader"), host)

    async def test_refuses_several_hosts_or_none(self) -> None:
        for lines in (
            (),
            ("Host: localhost", "Host: localhost"),
            ("Host: localhost", "Host: evil"),
        ):
            reply = await self.with_host(*lines)
            self.assertEqual((reply.status, reply.json["error"]), (400, "BadHeader"), lines)

    async def test_http_1_0_needs_no_host(self) -> None:
        self.assertEqual((await self.with_host(version="1.0")).status, 200)
        self.assertEqual((await self.with_host("Host: localhost", version="1.0")).status, 200)
        self.assertEqual((await self.with_host("Host: evil.example", version="1.0")).status, 421)

    async def test_a_request_for_another_name_reaches_no_handler(self) -> None:
        head = {"Host": "evil.example"}
        for path in ("/echo/w", "/public"):
            client = await self.client()
            client.send(request("POST", path, b"x", head))
            self.assertEqual((await client.reply()).status, 421)
            await client.closed
        self.assertEqual(self.server.responses, {("-", 421): 2})


class HostAddresses(SynchronousTestCase):
    """On a listener that is bound to no address in particular."""

    def test_accepts_the_address_that_the_request_was_sent_to(self) -> None:
        hosts = HostNames()
        for here, host, ours in (
            ("192.0.2.7", "192.0.2.7:9393", True),
            ("::ffff:192.0.2.7", "192.0.2.7", True),
            ("2001:db8::7", "[2001:db8:0::7]:9393", True),
            ("fe80::7%eth0", "[fe80::7]", True),
            ("192.0.2.7", "192.0.2.8", False),
            ("192.0.2.7", "0.0.0.0", False),
            ("", "192.0.2.7", False),
            ("192.0.2.7", "localhost", True),
        ):
            headers = Headers({"Host": [host]})
            if ours:
                hosts.check(headers, b"HTTP/1.1", here)
            else:
                with self.assertRaises(WrongHost):
                    hosts.check(headers, b"HTTP/1.1", here)

    def test_a_very_long_name_is_shortened_in_the_error(self) -> None:
        with self.assertRaises(WrongHost) as raised:
            HostNames().check(Headers({"Host": ["x" * 10_000]}), b"HTTP/1.1", "127.0.0.1")
        self.assertLess(len(str(raised.exception)), 400)
        with self.assertRaises(BadHeader):
            HostNames().check(Headers({"Host": ["[" + "1" * 10_000]}), b"HTTP/1.1", "127.0.0.1")

    def test_accepts_the_name_that_the_listener_is_bound_to(self) -> None:
        hosts = HostNames(["inside.example"])
        hosts.check(Headers({"Host": ["inside.example:9393"]}), b"HTTP/1.1", "10.0.0.1")


class OriginChecks(HttpServerCase):
    """Requests that browsers send for pages."""

    async def status(self, method: str, **headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = b"x" if method == "POST" else b""
        return (await self.ask(request(method, "/echo/w", body, named))).status

    async def test_refuses_requests_of_pages_of_other_sites(self) -> None:
        for origin in ("https://evil.example", "null", "http://localhost:81", "http://127.0.0.1"):
            for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json"):
                found = await self.status("POST", Origin=origin, Content_Type=kind)
                self.assertEqual(found, 403, origin)

    async def test_heeds_the_fetch_metadata_of_browsers(self) -> None:
        for site in ("cross-site", "same-site", "odd"):
            self.assertEqual(await self.status("POST", Sec_Fetch_Site=site), 403)
            self.assertEqual(
                await self.status("POST", Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate"), 403
            )
            self.assertEqual(await self.status("GET", Sec_Fetch_Site=site), 403)
            self.assertEqual(
                await self.status("GET", Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate"), 200
            )

    async def test_accepts_its_own_page_and_programs(self) -> None:
        for site in ("same-origin", "none"):
            for method in ("GET", "POST"):
                self.assertEqual(await self.status(method, Sec_Fetch_Site=site), 200)
        self.assertEqual(await self.status("POST", Origin="http://localhost"), 200)
        self.assertEqual(await self.status("POST", Origin="http://LOCALHOST"), 200)
        self.assertEqual(await self.status("POST"), 200)

from __future__ import annotations

from typing import Any
from unittest import TestCase

from synrepl.federation.server_acl import ServerAcl


def allowed(content: dict[str, Any], *servers: str) -> list[str]:
    """Those of some servers that may take part."""
    return [server for server in servers if ServerAcl(content).allows(server)]


class Allows(TestCase):
    def test_those_that_are_listed_and_not_denied(self) -> None:
        content = {"allow": ["*"], "deny": ["*.evil.example", "evil.example"]}
        servers = "a.example", "evil.example", "x.evil.example", "notevil.example"
        self.assertEqual(allowed(content, *servers), ["a.example", "notevil.example"])

    def test_nobody_who_is_not_listed(self) -> None:
        self.assertEqual(allowed({"allow": ["a.example"]}, "a.example", "b.example"), ["a.example"])
        for content in ({}, {"allow": []}, {"allow": "*"}, {"allow": [1, None]}):
            self.assertEqual(allowed(content, "a.example"), [])

    def test_wildcards(self) -> None:
        content = {"allow": ["a?.example", "b*e"]}
        servers = "a1.example", "a.example", "a12.example", "b.example", "be", "bx"
        self.assertEqual(allowed(content, *servers), ["a1.example", "b.example", "be"])

    def test_nothing_else_is_special(self) -> None:
        self.assertEqual(allowed({"allow": ["[ab].example", "(a|b)", "."]}, "a.example", "a"), [])
        self.assertEqual(allowed({"allow": ["a.example"]}, "axexample"), [])

    def test_regardless_of_case_and_port(self) -> None:
        content = {"allow": ["*"], "deny": ["EVIL.example"]}
        servers = "evil.EXAMPLE", "evil.example:8448", "good.example:8448"
        self.assertEqual(allowed(content, *servers), ["good.example:8448"])

    def test_addresses_unless_they_are_forbidden(self) -> None:
        servers = "192.0.2.1", "192.0.2.1:80", "[2001:db8::1]", "[2001:db8::1]:80", "a.example"
        self.assertEqual(allowed({"allow": ["*"]}, *servers), list(servers))
        for value in (True, None, "false", 0):
            content = {"allow": ["*"], "allow_ip_literals": value}
            self.assertEqual(allowed(content, *servers), list(servers))
        content = {"allow": ["*"], "allow_ip_literals": False}
        self.assertEqual(allowed(content, *servers), ["a.example"])

    def test_addresses_by_their_names(self) -> None:
        content = {"allow": ["*"], "deny": ["192.0.*", "[2001:db8::1]"]}
        servers = "192.0.2.1:80", "[2001:db8::1]:80", "[2001:db8::2]"
        self.assertEqual(allowed(content, *servers), ["[2001:db8::2]"])

    def test_no_name_of_no_server(self) -> None:
        self.assertEqual(allowed({"allow": ["*"]}, "", "a b", "127.1"), [])

    def test_takes_no_long_time_for_many_wildcards(self) -> None:
        content = {"allow": ["*a" * 100 + "b"] * 50, "deny": ["*a*" * 1000 + "b"]}
        name = ".".join(["a" * 50] * 4)
        self.assertEqual(allowed(content, name), [])

from __future__ import annotations

from unittest import TestCase

from synrepl.adapters.federation.addresses import AddressPolicy

PUBLIC = [
    "8.8.8.8",
    "1.1.1.1",
    "2001:4860:4860::8888",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2002:808:808::",
]

NOT_PUBLIC = [
    "127.0.0.1",
    "127.9.9.9",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "0.0.0.0",
    "0.1.2.3",
    "100.64.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "::1",
    "::",
    "fe80::1",
    "fc00::1",
    "fd12::1",
    "ff02::1",
    "2001:db8::1",
    "64:ff9b:1::1",
    "100::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "::10.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::10.0.0.1",
    "2002:7f00:1::",
    "2002:a00:1::",
    "2001:0:808:808::f5ff:fffe",
]


class Policies(TestCase):
    def test_allow_public_addresses(self) -> None:
        policy = AddressPolicy()
        self.assertEqual([each for each in PUBLIC if not policy.allows(each)], [])

    def test_refuse_all_others_however_they_are_written(self) -> None:
        policy = AddressPolicy()
        self.assertEqual([each for each in NOT_PUBLIC if policy.allows(each)], [])

    def test_allow_networks_that_are_configured(self) -> None:
        policy = AddressPolicy(["127.0.0.0/8", "fd00::/8"])
        allowed = ["127.0.0.1", "127.9.9.9", "::ffff:127.0.0.1", "64:ff9b::127.0.0.1", "fd12::1"]
        allowed += ["2002:7f00:1::", "::127.0.0.1"]
        self.assertCountEqual([each for each in NOT_PUBLIC if policy.allows(each)], allowed)
        self.assertTrue(all(map(policy.allows, PUBLIC)))

"""The service manager's side of ``sd_notify``, with a real socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import TestCase

from synrepl.daemon.service import notify, watchdog_interval


class Notify(TestCase):
    """Messages arrive, or are dropped without a fuss."""

    def listen(self, address: str) -> socket.socket:
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(receiver.close)
        receiver.bind(address)
        receiver.setblocking(False)
        return receiver

    def test_notifies_a_socket_given_by_path(self) -> None:
        with TemporaryDirectory() as directory:
            path = str(Path(directory) / "notify")
            receiver = self.listen(path)
            self.assertTrue(notify("READY=1", {"NOTIFY_SOCKET": path}))
            self.assertEqual(receiver.recv(100), b"READY=1")

    def test_notifies_a_socket_in_the_abstract_namespace(self) -> None:
        name = f"synrepl-test-{os.getpid()}"
        receiver = self.listen("\0" + name)
        self.assertTrue(notify("WATCHDOG=1", {"NOTIFY_SOCKET": "@" + name}))
        self.assertEqual(receiver.recv(100), b"WATCHDOG=1")

    def test_ignores_a_socket_that_nobody_listens_on(self) -> None:
        for address in ("", "/nowhere/at/all", "relative", "@synrepl-nobody"):
            with self.subTest(address):
                self.assertFalse(notify("READY=1", {"NOTIFY_SOCKET": address}))
        self.assertFalse(notify("READY=1", {}))


class Watchdog(TestCase):
    """How often to report."""

    def test_the_interval_is_half_the_watchdog_timeout(self) -> None:
        mine, other = str(os.getpid()), str(os.getpid() + 1)
        for environ, seconds in (
            ({"WATCHDOG_USEC": "30000000"}, 15.0),
            ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": mine}, 15.0),
            ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": other}, None),
            ({"WATCHDOG_USEC": "0"}, None),
            ({"WATCHDOG_USEC": "often"}, None),
            ({}, None),
        ):
            with self.subTest(environ):
                self.assertEqual(watchdog_interval(environ), seconds)

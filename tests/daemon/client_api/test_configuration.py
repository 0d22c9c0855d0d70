"""Settings of the client API: users, checkers, signing keys, addresses of writers."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from synrepl.core.errors import ConfigError
from synrepl.daemon.checked_config import checked_either
from synrepl.daemon.client_api.checkers import CheckerUnusable, UsersNeeded, make_checker
from synrepl.daemon.client_api.users_file import LOOK_EVERY_S, BadUsersFile, UsersFile
from synrepl.daemon.config.config import load
from synrepl.daemon.config.signing_key import new_signing_key
from synrepl.daemon.descriptors import divide_for

MASTER = """
server_name: example.com
database: postgresql://localhost/x
catalogue: [events, backfill, caches]
rooms: {rooms}
"""
WORKER = MASTER + "instance_name: w1\nmaster: {{port: 9392{more}}}\n"

CHECKERS = "tests.daemon.client_api.checkers"


class ClientApiSettings(TestCase):
    """Configurations, checked as ``check-config`` does."""

    def setUp(self) -> None:
        folder = TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.directory = Path(folder.name)
        self.write("signing.key", new_signing_key("1"))
        self.write("users.yaml", "users: {'@a:example.com': long enough}")

    def write(self, name: str, text: str, mode: int = 0o600) -> Path:
        path = self.directory / name
        path.write_text(text)
        path.chmod(mode)
        return path

    def config(self, rooms: str, template: str = MASTER, more: str = "") -> Path:
        text = template.format(rooms=rooms, more=more) + f"data_dir: {self.directory}\n"
        return self.write("c.yaml", text)

    def error(self, rooms: str, template: str = MASTER, more: str = "") -> str:
        """The error of a configuration."""
        with self.assertRaises(ConfigError) as raised:
            checked_either([self.config(rooms, template, more)])
        return str(raised.exception)

    def test_true_stands_for_the_defaults(self) -> None:
        config = checked_either([self.config("{client_api: true}")])
        assert config.rooms is not None
        section = config.rooms.clients
        assert section is not None
        self.assertEqual((section.port, section.bind_address), (8008, "127.0.0.1"))
        self.assertIsNone(checked_either([self.config("{client_api: false}")]).rooms.clients)  # type: ignore[union-attr]

    def test_impossible_settings_are_refused_by_name(self) -> None:
        self.assertIn("bind_address", self.error("{client_api: {bind_address: 0.0.0.0}}"))
        self.assertIn(
            "default_room_version", self.error("{client_api: {default_room_version: '99'}}")
        )
        both = f"{{client_api: {{users: users.yaml, checker: '{CHECKERS}:OneUser'}}}}"
        self.assertIn("either users or checker", self.error(both))
        self.assertIn("checker_config", self.error("{client_api: {checker_config: {a: 1}}}"))
        self.assertIn("client_api", self.error("{client_api: 5}"))

    def test_a_signing_key_is_needed_and_must_be_one(self) -> None:
        rooms = "{client_api: true}"
        self.write("signing.key", "ed25519 a_1 secretpart")
        message = self.error(rooms)
        self.assertIn("signing_key", message)
        self.assertNotIn("secretpart", message)
        self.write("signing.key", new_signing_key("1") + new_signing_key("2"))
        self.assertIn("2 keys", self.error(rooms))
        self.write("signing.key", new_signing_key("1"), 0o644)
        self.assertIn("chmod", self.error(rooms))
        (self.directory / "signing.key").unlink()
        self.assertIn("signing_key", self.error(rooms))

    def test_the_addresses_of_other_writers_are_needed(self) -> None:
        streams = ", ".join(f"{each}: [master, w1]" for each in ("events", "backfill", "caches"))
        more = f"}}\nstream_writers: {{{streams}"
        rooms = "{client_api: true, writers: [master, w1]}"
        self.assertIn("'master'", self.error(rooms, WORKER, more))
        known = ", http_url: 'http://127.0.0.1:9393'" + more
        checked_either([self.config(rooms, WORKER, known)])
        named = "{client_api: true, writers: [master, w1], writer_urls: {master: 'http://a:1'}}"
        checked_either([self.config(named, WORKER, more)])

    def test_the_addresses_of_writers_of_clients_data_are_needed(self) -> None:
        template = MASTER.replace("caches]", "caches, receipts, typing]")
        more = "stream_writers: {{receipts: [master, w1]}}\n"
        message = self.error("{client_api: true}", template + more)
        self.assertIn("'w1' writes 'receipts'", message)
        named = "{client_api: true, writer_urls: {w1: 'http://a:1'}}"
        checked_either([self.config(named, template + more)])
        worker = WORKER.replace("caches]", "caches, receipts]")
        message = self.error(
            "{client_api: true}", worker.replace("{{port: 9392{more}}}", "{{port: 9392}}")
        )
        self.assertIn("'master'", message)

    def test_connections_of_clients_have_a_share_of_the_descriptors(self) -> None:
        config = load([self.config("{client_api: {max_connections: 50}}")])
        self.assertLessEqual(divide_for(config).clients.total, 50)
        self.assertGreater(divide_for(config).clients.total, 0)
        self.assertEqual(divide_for(load([self.config("{}")])).clients.total, 0)

    def test_a_class_of_the_users_is_verified_and_made(self) -> None:
        path = f"{CHECKERS}:OneUser"
        rooms = f"{{client_api: {{checker: '{path}', checker_config: {{password: x}}}}}}"
        config = checked_either([self.config(rooms)])
        assert config.rooms is not None
        assert config.rooms.clients is not None
        checker = make_checker(cast(Any, Clock()), config, config.rooms.clients)
        self.assertEqual(checker.flows(), ["m.login.password"])
        for name, reason in (
            ("Undeclared", "does not implement"),
            ("Incomplete", "login"),
            ("NotAsync", "async def"),
            ("OneUser", "checker_config"),
            ("Missing", "Missing"),
        ):
            message = self.error(f"{{client_api: {{checker: '{CHECKERS}:{name}'}}}}")
            self.assertIn(reason, message)
        failing = load([self.config(f"{{client_api: {{checker: '{CHECKERS}:Failing'}}}}")])
        assert failing.rooms is not None
        assert failing.rooms.clients is not None
        with self.assertRaises(CheckerUnusable) as raised:
            make_checker(cast(Any, Clock()), failing, failing.rooms.clients)
        self.assertIn("no directory service", str(raised.exception))

    def test_without_users_they_are_asked_for(self) -> None:
        config = load([self.write("d.yaml", MASTER.format(rooms="{client_api: true}"))])
        assert config.rooms is not None
        assert config.rooms.clients is not None
        with self.assertRaises(UsersNeeded):
            make_checker(cast(Any, Clock()), config, config.rooms.clients)

    def test_bad_files_with_users_are_refused_without_their_passwords(self) -> None:
        clock = cast(Any, Clock())
        for text in (
            "users: [a]",
            "{}",
            "users: {'@a:example.com': 'short'}\nother: 1",
            "users: {'@a:example.com': short}",
            "users: {'@a:example.com': 12345678}",
            "users: {'@a:other': secretsecret}",
            "users: {alice: secretsecret}",
            "users: {'@a:example.com': secretsecret, '@a:example.com': secretsecret}",
            "users: {'@a:example.com': secretsecret",
        ):
            path = self.write("u.yaml", text)
            with self.assertRaises(BadUsersFile) as raised:
                UsersFile(clock, path, "example.com")
            self.assertNotIn("secretsecret", str(raised.exception))
        with self.assertRaises(ConfigError):
            UsersFile(clock, self.write("u.yaml", "users: {}", 0o644), "example.com")

    def test_a_file_with_users_is_read_again_when_it_changes(self) -> None:
        clock = Clock()
        path = self.write("u.yaml", "users: {'@a:example.com': long enough}")
        users = UsersFile(cast(Any, clock), path, "example.com")
        self.write("u.yaml", "users: {'@bob:example.com': long enough}")
        self.assertEqual(users(), {"@a:example.com": "long enough"})
        clock.advance(LOOK_EVERY_S)
        self.assertEqual(users(), {"@bob:example.com": "long enough"})
        self.write("u.yaml", "users: {'@c:example.com': short}")
        clock.advance(LOOK_EVERY_S)
        self.assertEqual(users(), {"@bob:example.com": "long enough"})
        path.unlink()
        clock.advance(LOOK_EVERY_S)
        self.assertEqual(users(), {"@bob:example.com": "long enough"})

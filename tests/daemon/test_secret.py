"""Secrets are read from private files and never shown."""

from __future__ import annotations

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import TestCase

from synrepl.core.private_files import readers
from synrepl.daemon.config.secret import BadSecretFile, dsn_secret, read_secret


class SecretFiles(TestCase):
    """Secret files."""

    def setUp(self) -> None:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = Path(directory.name) / "secret"

    def write(self, data: bytes, mode: int = 0o600) -> None:
        self.path.write_bytes(data)
        self.path.chmod(mode)

    def test_strips_surrounding_white_space(self) -> None:
        self.write(b"  sesame seed\r\n\n")
        self.assertEqual(read_secret(self.path).reveal(), "sesame seed")

    def test_a_secret_is_never_shown(self) -> None:
        self.write(b"sesame")
        secret = read_secret(self.path)
        self.assertNotIn("sesame", f"{secret} {secret!r}")
        self.assertIn(str(self.path), str(secret))

    def test_refuses_a_secret_file_that_is_readable_or_malformed(self) -> None:
        for data, mode, problem in (
            (b"x", 0o644, "can be read by everybody (mode 0644); chmod it to 0600"),
            (b"x", 0o604, "can be read by everybody"),
            (b" \n", 0o600, "empty"),
            (b"\xff", 0o600, "not UTF-8"),
            (b"x" * 4097, 0o600, "longer than 4096"),
        ):
            with self.subTest(problem):
                self.write(data, mode)
                with self.assertRaisesRegex(BadSecretFile, re.escape(problem)):
                    read_secret(self.path)

    def test_names_who_can_read_a_file_and_should_not(self) -> None:
        """As service managers, container engines and administrators hand secrets over."""
        for mode, owner, found in (
            (0o100600, 1000, None),
            (0o100400, 1000, None),
            (0o100400, 0, None),  # systemd: LoadCredential=, as the unit's user sees it
            (0o100440, 0, None),  # systemd, with an ACL; Kubernetes: defaultMode 0440, fsGroup
            (0o100640, 0, None),  # root:synrepl, as packages and configuration managers do
            (0o100640, 1000, "its group (mode 0640)"),
            (0o100444, 0, "everybody (mode 0444)"),  # Swarm, unless 'mode: 0400' is said
            (0o100644, 0, "everybody (mode 0644)"),  # Kubernetes by default
        ):
            with self.subTest(oct(mode), owner=owner):
                self.assertEqual(readers(mode, owner), found)

    def test_refuses_another_users_file_that_its_group_can_read(self) -> None:
        self.write(b"sesame", 0o640)
        if os.geteuid() == 0:
            self.assertEqual(read_secret(self.path).reveal(), "sesame")
            os.chown(self.path, 65534, -1)
        with self.assertRaisesRegex(BadSecretFile, r"can be read by its group \(mode 0640\)"):
            read_secret(self.path)

    def test_refuses_an_absent_file(self) -> None:
        with self.assertRaisesRegex(BadSecretFile, "No such file"):
            read_secret(self.path)


class DsnSecrets(TestCase):
    """Of a DSN everything may be seen but the password."""

    def test_shows_a_dsn_without_its_password(self) -> None:
        for dsn, shown in (
            ("postgresql://u:sesame@h:5/db", "postgresql://u:***@h:5/db"),
            ("postgres://u:se@same@h/db", "postgres://u:***@h/db"),
            ("postgres://u:se/same@h/db", "postgres://***"),
            ("postgres://u:se?same@h/db", "postgres://***"),
            ("postgresql:///db?password=sesame", "postgresql:///db?***"),
            ("postgresql://h/db", "postgresql://h/db"),
            ("host=h password=sesame port=5", "host=h port=5 ***"),
            ("host=h password='open sesame'", "host=h ***"),
        ):
            with self.subTest(dsn):
                secret = dsn_secret(dsn)
                self.assertEqual(str(secret), shown)
                self.assertEqual(secret.reveal(), dsn)
                self.assertNotIn("same", repr(secret))

    def test_refuses_a_dsn_of_an_unknown_form(self) -> None:
        for dsn in ("embeded", "mysql://h/db?x=1", "postgresql:/x"):
            with self.subTest(dsn), self.assertRaises(ValueError):
                dsn_secret(dsn)

"""Checks of DSNs without connecting."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import TestCase

from synrepl.driver.dsn import BadDsn, PlainTextDatabase, holds_password, refuse_plain_text

SERVICES = """
# as in libpq's documentation
[near]
host=/run/postgresql
[far]
host=db.example.com
user=synrepl
[far-and-encrypted]
host=db.example.com
sslmode=verify-full
"""


class PlainTextConnections(TestCase):
    """Plain text is allowed only on this machine."""

    def refused_host(self, dsn: str, **environ: str) -> str | None:
        """The host for which plain text is refused."""
        try:
            refuse_plain_text(dsn, "'insecure: true'", environ)
        except PlainTextDatabase as error:
            return str(error.facts["host"])
        return None

    def test_accepts_plain_text_on_this_machine(self) -> None:
        for dsn in (
            "postgresql:///x",
            "dbname=x",
            "postgresql://u:p@localhost/x",
            "postgresql://127.0.0.1,[::1]:5433/x",
            "host=/run/postgresql",
            "host=@abstract",
            "host=,/run/postgresql,localhost",
            "host=db.example.com hostaddr=127.0.0.1",  # a tunnel
        ):
            with self.subTest(dsn):
                self.assertIsNone(self.refused_host(dsn))

    def test_refuses_plain_text_to_another_machine(self) -> None:
        for dsn, host in (
            ("postgresql://u:p@db.example.com/x", "db.example.com"),
            ("host=10.0.0.1", "10.0.0.1"),
            ("host=localhost hostaddr=10.0.0.1", "10.0.0.1"),
            ("host=localhost,10.0.0.2", "10.0.0.2"),
            ("host=localhost,10.0.0.2 hostaddr=127.0.0.1,", "10.0.0.2"),
        ):
            for sslmode in ("", " sslmode=disable", " sslmode=allow", " sslmode=prefer"):
                with self.subTest(dsn, sslmode=sslmode):
                    option = sslmode.replace(" ", "?") if "://" in dsn else sslmode
                    self.assertEqual(self.refused_host(dsn + option), host)
            for option in ("sslmode=require", "sslmode=verify-ca", "sslmode=verify-full"):
                with self.subTest(dsn, option=option):
                    self.assertIsNone(
                        self.refused_host(f"{dsn}{'?' if '://' in dsn else ' '}{option}")
                    )
        self.assertIsNone(self.refused_host("host=db.example.com gssencmode=require"))

    def test_reads_what_libpq_takes_from_the_environment(self) -> None:
        self.assertEqual(self.refused_host("dbname=x", PGHOST="db.example.com"), "db.example.com")
        self.assertEqual(self.refused_host("host=localhost", PGHOSTADDR="10.0.0.1"), "10.0.0.1")
        self.assertIsNone(self.refused_host("host=localhost", PGHOST="db.example.com"))
        self.assertIsNone(self.refused_host("host=db.example.com", PGSSLMODE="verify-full"))
        weaker = self.refused_host("host=db.example.com sslmode=prefer", PGSSLMODE="verify-full")
        self.assertEqual(weaker, "db.example.com")

    def test_reads_service_files(self) -> None:
        with TemporaryDirectory() as directory:
            path = Path(directory) / "pg_service.conf"
            path.write_text(SERVICES)
            for where in ({"PGSERVICEFILE": str(path)}, {"PGSYSCONFDIR": directory}):
                with self.subTest(where):
                    self.assertIsNone(self.refused_host("service=near", **where))
                    self.assertEqual(self.refused_host("service=far", **where), "db.example.com")
                    self.assertIsNone(self.refused_host("service=far sslmode=require", **where))
                    self.assertIsNone(self.refused_host("service=far-and-encrypted", **where))
                    self.assertIsNone(self.refused_host("service=far host=localhost", **where))
                    self.assertEqual(
                        self.refused_host("dbname=x", PGSERVICE="far", **where), "db.example.com"
                    )
                    self.assertEqual(self.refused_host("service=gone", **where), "service gone")

    def test_a_bad_dsn_is_refused_without_showing_it(self) -> None:
        for dsn in ("hunter2", "postgresql://u:hunter2@[x/"):
            with self.assertRaises(BadDsn) as caught:
                refuse_plain_text(dsn, "")
            self.assertNotIn("hunter2", str(caught.exception))


class PasswordsInDsns(TestCase):
    def test_found_wherever_a_dsn_may_have_one(self) -> None:
        for dsn, found in (
            ("postgresql://u:p@localhost/x", True),
            ("postgresql://localhost/x?p%61ssword=p", True),
            ("host=localhost password = 'a b'", True),
            ("host=localhost sslpassword=p", True),
            ("postgresql://u@localhost/password", False),
            ("host=localhost passfile=there", False),
        ):
            with self.subTest(dsn):
                self.assertEqual(holds_password(dsn), found)

"""Which failed connections are permanent refusals, according to real servers."""

from __future__ import annotations

import ctypes
import socket
import threading
from typing import Any
from unittest.mock import Mock

import psycopg2
from psycopg2 import extensions
from twisted.trial.unittest import SynchronousTestCase

from synrepl.driver.connection import DatabaseAddress, DatabaseRefused, is_permanent
from synrepl.storage.store import DatabaseAway
from synrepl.testing.postgres import server
from tests.driver.embedded_server import query_one

#: Recorded from PostgreSQL 15 in German: pg_hba.conf rejects a user; the server shuts down.
REJECTED = (
    b"E\x00\x00\x00\xbdSFATAL\x00VFATAL\x00C28000\x00Mpg_hba.conf lehnt Verbindung ab f\xc3\xbcr "
    b"Host \xc2\xbb127.0.0.1\xc2\xab, Benutzer \xc2\xbbstranger\xc2\xab, Datenbank \xc2\xbbpostgres"
    b"\xc2\xab, keine Verschl\xc3\xbcsselung\x00Fauth.c\x00L476\x00RClientAuthentication\x00\x00"
)
SHUTTING_DOWN = (
    b"E\x00\x00\x00iSFATAL\x00VFATAL\x00C57P03\x00Mdas Datenbanksystem f\xc3\xa4hrt herunter\x00"
    b"Fpostmaster.c\x00L2432\x00RProcessStartupPacket\x00\x00"
)


class PermanentRefusals(SynchronousTestCase):
    """Each fault of a DSN, and each state of a server."""

    def outcome(self, **parts: object) -> DatabaseAway:
        """The error of connecting."""
        given = {**extensions.parse_dsn(server().dsn), **parts}
        dsn = extensions.make_dsn(**{key: value for key, value in given.items() if value != ""})
        error: Any = self.assertRaises(DatabaseAway, DatabaseAddress(dsn, "tests").connect)
        self.assertNotIn("hunter2", str(error))
        return error  # type: ignore[no-any-return]

    def with_role(self, options: str) -> dict[str, str]:
        """A role that may log in, if it gets that far."""
        query_one(server().dsn, f"CREATE ROLE refusals PASSWORD 'hunter2' {options}")
        self.addCleanup(query_one, server().dsn, "DROP ROLE refusals")
        return {"user": "refusals", "password": "hunter2"}

    def test_errors_that_waiting_does_not_cure_are_refusals(self) -> None:
        for parts in (
            {"password": "hunter2"},
            {"password": ""},
            {"user": "nobody"},
            {"dbname": "nowhere"},
            {"sslmode": "require"},  # the server has no TLS
            {"sslmode": "verify-full", "sslrootcert": "gone.pem"},
            {"sslmode": "always"},
            {"channel_binding": "require"},
            {"options": "-c no_such_setting=1"},
            {"options": "-c work_mem=much"},
        ):
            with self.subTest(parts):
                self.assertIsInstance(self.outcome(**parts), DatabaseRefused)

    def test_a_role_that_may_not_log_in_is_a_refusal(self) -> None:
        self.assertIsInstance(self.outcome(**self.with_role("NOLOGIN")), DatabaseRefused)

    def test_a_role_without_a_free_connection_is_waited_for(self) -> None:
        error = self.outcome(**self.with_role("LOGIN CONNECTION LIMIT 0"))
        self.assertIn('too many connections for role "refusals"', str(error))
        self.assertNotIsInstance(error, DatabaseRefused)

    def test_a_server_that_cannot_be_reached_is_waited_for(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            free = listener.getsockname()[1]
        for parts in ({"port": free}, {"host": "db.invalid"}, {"host": "/nowhere"}):
            with self.subTest(parts):
                self.assertNotIsInstance(self.outcome(**parts), DatabaseRefused)

    def test_the_code_counts_in_whatever_language_a_server_answers(self) -> None:
        for answer, refused in ((REJECTED, True), (SHUTTING_DOWN, False)):
            with self.subTest(answer[40:80]), _Recorded(answer) as port:
                error = self.outcome(port=port)
                self.assertEqual(isinstance(error, DatabaseRefused), refused, str(error))

    def test_without_the_codes_english_refusals_are_known(self) -> None:
        self.patch(ctypes, "CDLL", Mock(side_effect=OSError("libpq is linked statically")))
        self.assertIsInstance(self.outcome(password="hunter2"), DatabaseRefused)
        self.assertIsInstance(self.outcome(dbname="nowhere"), DatabaseRefused)
        with _Recorded(SHUTTING_DOWN) as port:
            self.assertNotIsInstance(self.outcome(port=port), DatabaseRefused)

    def test_a_server_that_takes_the_second_connection_was_away(self) -> None:
        parameters = extensions.parse_dsn(server().dsn)
        error = psycopg2.OperationalError("FATAL:  the database system is starting up")
        self.assertFalse(is_permanent(error, parameters))


class _Recorded:
    """Answers every connection as a recorded server did: no TLS, and then this."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> int:
        self._thread.start()
        port: int = self._listener.getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                while asked := connection.recv(4096):
                    if asked[4:8] in (b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30"):  # TLS? GSSAPI?
                        connection.sendall(b"N")
                    else:
                        connection.sendall(self._answer)
                        break

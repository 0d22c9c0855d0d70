"""Opens connections with one set of settings, and keeps passwords out of messages.

A connection that was refused for good is told from a server that is temporarily unavailable. The
server refuses with an SQLSTATE, but libpq reports only the text of a failed connection, in the
server's language. So a second connection is attempted with verbose errors, whose text begins with
the code.
"""

from __future__ import annotations

import ctypes
import re
import select
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import psycopg2
from psycopg2 import extensions, extras

from synrepl.driver.dsn import BadDsn as BadDsn
from synrepl.driver.dsn import parse_dsn
from synrepl.driver.errors import one_line
from synrepl.driver.incarnation import ServerIncarnation, read_incarnation
from synrepl.driver.prepared_plans import PreparedPlans
from synrepl.storage.store import DatabaseAway

#: Connection timeout in whole seconds; libpq allows no less than two.
CONNECT_TIMEOUT_S = 10


class PostgresConnection(extensions.connection):
    """A psycopg2 connection that knows the incarnation of the server at its other end."""

    @cached_property
    def incarnation(self) -> ServerIncarnation | None:
        """Read once, outside a transaction; see :func:`~synrepl.driver.incarnation.read_incarnation`."""
        return read_incarnation(self)

    @cached_property
    def plans(self) -> PreparedPlans:
        """The statements that were prepared on it."""
        return PreparedPlans()


class DatabaseRefused(DatabaseAway):
    """the database at {where} refused the connection: {reason}; waiting will not help, correct the DSN or the server's settings"""


@dataclass(frozen=True, slots=True)
class Keepalive:
    """TCP keepalive settings in seconds: how soon a silently dead connection counts as lost."""

    idle_s: int
    interval_s: int
    count: int

    @property
    def total_s(self) -> int:
        """Seconds from the last packet received to the connection counting as lost."""
        return self.idle_s + self.interval_s * self.count


PATIENT = Keepalive(idle_s=15, interval_s=5, count=3)


class DatabaseAddress:
    """Address of a database and the settings of connections to it.

    :param dsn: a libpq URI or key=value string
    :param instance: the process's name; the server shows it as ``synrepl <instance>``
    :param settings: server settings for every connection, in addition to the defaults
    :raises BadDsn: ``dsn`` cannot be parsed
    """

    def __init__(
        self,
        dsn: str,
        instance: str,
        *,
        keepalive: Keepalive = PATIENT,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._given = parse_dsn(dsn)
        self._instance = instance
        self._keepalive = keepalive
        self._settings = {"timezone": "UTC", "jit": "off", **(settings or {})}

    @property
    def where(self) -> str:
        """Host, port, database and user, for messages. Never the password."""
        shown = (
            f"{key}={self._given[key]}"
            for key in ("host", "port", "dbname", "user")
            if key in self._given
        )
        return " ".join(shown) or "the default address"

    def connect(self) -> PostgresConnection:
        """Open an autocommit connection. Blocks for :data:`CONNECT_TIMEOUT_S` at most.

        :raises DatabaseAway: the server cannot be reached, is starting up, or has no free connection
        :raises DatabaseRefused: the server refuses this user, password, database or a
            connection without TLS; see :mod:`synrepl.driver.connection`
        """
        parameters = self._parameters()
        try:
            connection: PostgresConnection = psycopg2.connect(
                connection_factory=PostgresConnection, **parameters
            )
            connection.autocommit = True
        except psycopg2.Error as error:
            away = self.away(error)
            if is_permanent(error, parameters):
                away = DatabaseRefused(**away.facts)
            raise away from None
        extras.register_default_json(connection, loads=msgspec.json.decode)
        extras.register_default_jsonb(connection, loads=msgspec.json.decode)
        extensions.register_type(_BYTES, connection)
        return connection

    def begin_connecting(self) -> extensions.connection:
        """Begin opening a connection in libpq's asynchronous mode; ``poll()`` reports its progress.

        :raises psycopg2.Error: the attempt cannot be started
        """
        begun: extensions.connection = psycopg2.connect(async_=1, **self._parameters())
        return begun

    def conninfo(self) -> str:
        """All parameters as a conninfo string for another libpq client. **It holds the password.**"""
        return str(extensions.make_dsn(**self._parameters()))

    def away(self, error: BaseException | str) -> DatabaseAway:
        """The :class:`DatabaseAway` for a connection that could not be opened or was lost."""
        return DatabaseAway(where=self.where, reason=self.redacted(error))

    def redacted(self, error: BaseException | str) -> str:
        """The text of an error on one line, without the password."""
        text = error if isinstance(error, str) else one_line(error)
        password = self._given.get("password")
        return text.replace(password, "***") if password else text

    def _parameters(self) -> dict[str, Any]:
        keepalive = self._keepalive
        options = " ".join(f"-c {name}={value}" for name, value in self._settings.items())
        return {
            "connect_timeout": CONNECT_TIMEOUT_S,
            "keepalives_idle": keepalive.idle_s,
            "keepalives_interval": keepalive.interval_s,
            "keepalives_count": keepalive.count,
            "tcp_user_timeout": keepalive.total_s * 1000,
            **self._given,
            "application_name": f"synrepl {self._instance}",
            "client_encoding": "UTF8",
            "options": f"{self._given.get('options', '')} {options}".strip(),
        }


def close(connection: extensions.connection) -> None:
    """Close a connection, ignoring errors."""
    with suppress(psycopg2.Error):
        connection.close()


def _bytes(value: Any, cursor: Any) -> bytes | None:
    view = psycopg2.BINARY(value, cursor)
    return None if view is None else bytes(view)


_BYTES = extensions.new_type((17,), "BYTES", _bytes)


#: Timeout of the second attempt in seconds: a server that just refused one answers soon.
ASK_S = 10.0

#: SQLSTATE classes that retrying does not help: no such user or a wrong password, no
#: such database, a missing parameter or privilege. Not 53 (no connection is free),
#: 55 and 57 (closed to connections, starting up, shutting down), nor 08.
_PERMANENT = ("28", "3D", "42", "22", "0A")

#: libpq writes the severity of a server's error, a colon and two blanks.
_BY_SERVER = re.compile(r":  \S")
_SQLSTATE = re.compile(r":  ([0-9A-Z]{5}): ")

#: Errors that libpq itself reports about the server, the DSN or its files. They are in
#: English, because Python does not set libpq's locale.
_BY_CLIENT = re.compile(
    r"no password supplied|authentication method|channel binding|incorrect server signature"
    r"|SSL was required|GSSAPI encryption required|certificate|private key file"
    r"|SSL error: .*(alert|version|protocol|cipher)"
    r"|invalid (\w+ )?value|invalid port number|definition of service|service file"
)

#: Used where errors cannot be made verbose. A server with messages in another language
#: counts as unavailable.
_IN_ENGLISH = ("authentication failed", "no pg_hba.conf entry", "does not exist", "not permitted")

_VERBOSE = 2  # PQERRORS_VERBOSE of libpq-fe.h


def is_permanent(error: psycopg2.Error, parameters: Mapping[str, Any]) -> bool:
    """Whether retrying will not help a connection that could not be opened.

    Blocks for up to :data:`ASK_S` seconds if the server refused.

    :param error: the error of opening it
    :param parameters: the parameters it was opened with
    """
    text = str(error)
    if not _BY_SERVER.search(text):
        return _BY_CLIENT.search(text) is not None
    if _set_error_verbosity() is None:
        return any(sign in text for sign in _IN_ENGLISH)
    return _sqlstate(parameters).startswith(_PERMANENT)


def _sqlstate(parameters: Mapping[str, Any]) -> str:
    """The SQLSTATE with which the server refuses a connection; "" if it does not do so in time."""
    set_verbosity = _set_error_verbosity()
    assert set_verbosity is not None
    try:
        connection = psycopg2.connect(async_=1, **parameters)
    except psycopg2.Error:
        return ""
    try:
        set_verbosity(connection.pgconn_ptr, _VERBOSE)
        _wait_until_open(connection, time.monotonic() + ASK_S)
    except psycopg2.Error as error:
        found = _SQLSTATE.findall(str(error))
        return found[-1] if found else ""  # the last of several hosts
    finally:
        with suppress(psycopg2.Error):
            connection.close()
    return ""


def _wait_until_open(connection: extensions.connection, deadline: float) -> None:
    events = {extensions.POLL_READ: select.POLLIN, extensions.POLL_WRITE: select.POLLOUT}
    while (state := connection.poll()) != extensions.POLL_OK:
        socket = select.poll()
        socket.register(connection.fileno(), events[state])
        if not socket.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return


def _set_error_verbosity() -> Any:
    """``PQsetErrorVerbosity`` of the libpq that psycopg2 uses; None if it cannot be loaded."""
    try:
        function = ctypes.CDLL(psycopg2._psycopg.__file__).PQsetErrorVerbosity
    except (AttributeError, OSError):  # libpq is linked statically
        return None
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    return function

"""Tells a connection that was refused for good from a server that is temporarily unavailable.

The server refuses with an SQLSTATE, but libpq reports only the text of a failed connection,
in the server's language. So a second connection is attempted with verbose errors, whose text
begins with the code.
"""

from __future__ import annotations

import ctypes
import re
import select
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psycopg2
from psycopg2 import extensions

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

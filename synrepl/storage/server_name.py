"""The ``server_name`` that owns a database, as recorded by the first master.

A process with another ``server_name`` in its configuration is refused before it changes
anything: it has the DSN of another deployment, or its name was changed by mistake.
"""

from __future__ import annotations

from synrepl.core.errors import ConfigError, InputError, Refused
from synrepl.storage import writers
from synrepl.storage.database import Transaction, value


class WrongServer(ConfigError):
    """server_name: {given!r} is not the server of this database, which belongs to {recorded!r}; correct server_name, or give {given!r} a database of its own; if the server was renamed, stop its processes and run 'synrepl schema rename-server'"""


class NotThisServer(InputError):
    """this database belongs to {recorded}, not to {given!r}; nothing was changed"""


class ServerRuns(Refused):
    """{holder} runs on this database, as {recorded!r}; stop all its processes, and rename the server then"""


def recorded_server(txn: Transaction) -> str | None:
    """The recorded name; None if no master has used the database yet."""
    if not value(txn, "SELECT to_regclass('synrepl._server') IS NOT NULL"):
        return None
    row = txn.execute("SELECT server_name FROM synrepl._server").fetchone_or_none()
    return None if row is None else str(row[0])


def check_server(txn: Transaction, server_name: str) -> None:
    """Check that the database belongs to this server, or to none yet.

    :raises WrongServer:
    """
    recorded = recorded_server(txn)
    if recorded not in (None, server_name):
        raise WrongServer(given=server_name, recorded=recorded)


def record_server(txn: Transaction, server_name: str) -> None:
    """Record the server name in a database that has none.

    :raises WrongServer: it has another one
    """
    txn.execute(
        "INSERT INTO synrepl._server (server_name) VALUES (%s) ON CONFLICT (one_row) DO NOTHING",
        (server_name,),
    )
    check_server(txn, server_name)


def rename_server(txn: Transaction, before: str, server_name: str) -> None:
    """Change the recorded name.

    :param before: the recorded name, as a safeguard against renaming the wrong database
    :raises NotThisServer: the recorded name is another one
    :raises ServerRuns: a process has a writer name; processes that only read are not detected
    """
    recorded = recorded_server(txn)
    if recorded != before:
        owner = "no server yet" if recorded is None else repr(recorded)
        raise NotThisServer(recorded=owner, given=before)
    found = writers.name_holder(txn, None)
    if found is not None:
        raise ServerRuns(holder=found[1], recorded=recorded)
    txn.execute("UPDATE synrepl._server SET server_name = %s, named_at = now()", (server_name,))

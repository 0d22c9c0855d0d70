"""Identifies a database, so that stored positions are only used with the one they belong to."""

from __future__ import annotations

from typing import NamedTuple

from synrepl.pipeline.source.database.sql import literal
from synrepl.storage.database import QueryFailed, Transaction

#: A standby has the incarnation of the server that it follows.
_OF_INCARNATION = """EXISTS (SELECT FROM (SELECT * FROM synrepl._incarnations
    ORDER BY number DESC LIMIT 1) AS last WHERE number = {} AND CASE WHEN pg_is_in_recovery() THEN true
    ELSE timeline = left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END)"""


class DatabaseIdentity(NamedTuple):
    """Identifies a database across restarts and failovers.

    A dump restored elsewhere is another database. A user who may not read the system identifier
    gets an identity without it, which differs from the full one.

    :ivar system: the identifier of the database system; "" if it may not be read
    :ivar name: the name of the database in it
    """

    system: str
    name: str

    def __str__(self) -> str:
        return f"{self.system}/{self.name}" if self.system else self.name

    def identity_sql(self, lsn: str, incarnation: int = 0) -> str:
        """A statement that is true in this database once it has replayed its log up to ``lsn``.

        :param lsn: the log position when the database was observed, see :func:`log_position`
        :param incarnation: the required incarnation of the server; 0 where they are not recorded
        """
        same = f"current_database() = {literal(self.name)}"
        if self.system:
            system = f"system_identifier::text = {literal(self.system)}"
            same += f" AND EXISTS (SELECT FROM pg_control_system() WHERE {system})"
        if incarnation:
            same += f" AND {_OF_INCARNATION.format(incarnation)}"
        there = f"pg_last_wal_replay_lsn() >= CAST({literal(lsn)} AS pg_lsn)"
        return f"SELECT {same} AND (NOT pg_is_in_recovery() OR coalesce({there}, false))"


def identify(txn: Transaction) -> DatabaseIdentity:
    """Read the identity of the database."""
    txn.execute("SELECT current_database()")
    name = str(txn.fetchone()[0])
    txn.execute("SAVEPOINT asking")
    try:
        system = txn.execute("SELECT system_identifier FROM pg_control_system()").fetchone()[0]
    except QueryFailed:
        txn.execute("ROLLBACK TO SAVEPOINT asking")
        return DatabaseIdentity("", name)
    return DatabaseIdentity(str(system), name)


def log_position(txn: Transaction) -> str:
    """The end of the server's log; on a standby, the position up to which it has been replayed.

    Everything visible to this transaction is visible in any database that has the log up to there.
    """
    txn.execute(
        "SELECT coalesce(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
        " ELSE pg_current_wal_insert_lsn() END, '0/0')::text"
    )
    return str(txn.fetchone()[0])

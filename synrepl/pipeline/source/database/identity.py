"""Which database this is, for whoever comes back with positions."""

from __future__ import annotations

from typing import NamedTuple

from synrepl.pipeline.source.database.sql import literal
from synrepl.storage.database import QueryFailed, Transaction

#: A standby has the incarnation of the server that it follows.
_OF_INCARNATION = """EXISTS (SELECT FROM (SELECT * FROM synrepl._incarnations
    ORDER BY number DESC LIMIT 1) AS last WHERE number = {} AND CASE WHEN pg_is_in_recovery() THEN true
    ELSE timeline = left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END)"""


class DatabaseIdentity(NamedTuple):
    """What tells a database from any other, over restarts and failovers.

    A dump that is restored elsewhere is another one. So is the same one to a user who may
    not ask for the system's identifier, which is then left out.

    :ivar system: the identifier of the database system; "" when it may not be asked for
    :ivar name: of the database in it
    """

    system: str
    name: str

    def __str__(self) -> str:
        return f"{self.system}/{self.name}" if self.system else self.name

    def identity_sql(self, lsn: str, incarnation: int = 0) -> str:
        """A statement that gives true in this database, once it has everything up to a place in its log.

        :param lsn: where it was when somebody looked, as :func:`log_position` tells
        :param incarnation: that its server has to be of; 0 where nobody counts them
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
    """Find out which database this is."""
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
    """Up to where the server's log goes now; on a standby, up to where it has been replayed.

    Whatever this transaction sees, is seen by everybody in a database that has the log up to there.
    """
    txn.execute(
        "SELECT coalesce(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
        " ELSE pg_current_wal_insert_lsn() END, '0/0')::text"
    )
    return str(txn.fetchone()[0])

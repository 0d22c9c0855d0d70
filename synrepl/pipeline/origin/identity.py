"""Which database this is, for whoever comes back with positions."""

from __future__ import annotations

from synrepl.storage.database import QueryFailed, Transaction


def server_of(txn: Transaction) -> str:
    """What tells this database from any other, over restarts and failovers.

    A dump that is restored elsewhere is another one. So is the same one to a user who may
    not ask for the system's identifier, which is then left out.
    """
    txn.execute("SELECT current_database()")
    name = str(txn.fetchone()[0])
    txn.execute("SAVEPOINT asking")
    try:
        system = txn.execute("SELECT system_identifier FROM pg_control_system()").fetchone()[0]
    except QueryFailed:
        txn.execute("ROLLBACK TO SAVEPOINT asking")
        return name
    return f"{system}/{name}"

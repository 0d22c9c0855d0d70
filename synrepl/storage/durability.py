"""Settings of the server that decide which commits survive a crash or a failover."""

from __future__ import annotations

from dataclasses import dataclass

from synrepl.storage.database import Transaction

_SETTINGS = """
    SELECT current_setting('fsync'), current_setting('full_page_writes'),
           current_setting('synchronous_commit'), current_setting('synchronous_standby_names')
"""


@dataclass(frozen=True, slots=True)
class Durability:
    """The server's durability settings.

    :ivar synchronous_commit: as set for the user and the database of this connection
    :ivar has_synchronous_standbys: whether commits can wait for standbys
    """

    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    has_synchronous_standbys: bool


def durability(txn: Transaction) -> Durability:
    """Read the settings, which every user may read."""
    fsync, full_pages, synchronous_commit, standbys = txn.execute(_SETTINGS).fetchone()
    return Durability(fsync == "on", full_pages == "on", str(synchronous_commit), bool(standbys))

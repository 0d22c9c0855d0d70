"""Opens the source database of a DSN: synrepl's own, or a real Synapse's."""

from __future__ import annotations

from synrepl.core.errors import InputError
from synrepl.driver.blocking import PATIENCE_S, BlockingDatabase
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.database.synapse_database import SynapseDatabase
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.storage.foreign.release import NotSynapse


class NoStreamTables(InputError):
    """the database at {where} has neither synrepl's tables nor those of a Synapse; start a master on it once, or correct the DSN"""


def open_source_database(dsn: str, instance: str, patience_s: float = PATIENCE_S) -> SourceDatabase:
    """Connect, and find out which kind of database it is.

    :param instance: the ``application_name`` of the connection
    :param patience_s: how long to retry while the database is unreachable, in seconds
    :raises BadDsn: :raises DatabaseAway: :raises NoStreamTables:
    """
    database = BlockingDatabase(dsn, instance, patience_s)
    try:
        own = database.run(
            "look for synrepl's tables",
            lambda txn: txn.execute("SELECT to_regclass('synrepl._streams')").fetchone()[0],
            read_only=True,
        )
        return SynreplDatabase(database) if own else SynapseDatabase(database)
    except NotSynapse:
        where = database.address.where
        database.close()
        raise NoStreamTables(where=where) from None
    except BaseException:
        database.close()
        raise

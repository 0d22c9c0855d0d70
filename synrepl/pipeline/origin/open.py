"""Whatever a DSN leads to."""

from __future__ import annotations

from synrepl.core.errors import InputError
from synrepl.driver.blocking import PATIENCE_S, BlockingDatabase
from synrepl.pipeline.origin.foreign import ForeignOrigin
from synrepl.pipeline.origin.origin import Origin
from synrepl.pipeline.origin.own import OwnOrigin
from synrepl.storage.foreign.release import NotSynapse


class NoStreams(InputError):
    """the database at {where} has neither synrepl's tables nor those of a Synapse; start a master on it once, or correct the DSN"""


def open_origin(dsn: str, instance: str, patience_s: float = PATIENCE_S) -> Origin:
    """Connect, and find out whose streams there are.

    :param instance: who asks, for the server's list of sessions
    :param patience_s: how long a database that is away is tried again, in seconds
    :raises BadDsn: :raises DatabaseAway: :raises NoStreams:
    """
    database = BlockingDatabase(dsn, instance, patience_s)
    try:
        own = database.run(
            "look for synrepl's tables",
            lambda txn: txn.execute("SELECT to_regclass('synrepl._streams')").fetchone()[0],
            read_only=True,
        )
        return OwnOrigin(database) if own else ForeignOrigin(database)
    except NotSynapse:
        where = database.address.where
        database.close()
        raise NoStreams(where=where) from None
    except BaseException:
        database.close()
        raise

"""Server incarnations: distinguishes one run of a PostgreSQL server from the next."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import psycopg2
from psycopg2 import extensions


@dataclass(frozen=True, slots=True)
class ServerIncarnation:
    """One run of a server, from recovery to shutdown or crash.

    Equal values mean the same run.

    :ivar system: the cluster's system identifier
    :ivar timeline: changes with a promotion; None on a standby
    :ivar started: start of the postmaster
    :ivar statistics_since: reset by a crash that the postmaster itself survives
    """

    system: int
    timeline: str | None
    started: datetime
    statistics_since: datetime | None


#: The columns of a :class:`ServerIncarnation`, in one row.
INCARNATION = """
    SELECT s.system_identifier,
           CASE WHEN NOT pg_is_in_recovery()
                THEN left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END,
           pg_postmaster_start_time(),
           w.stats_reset
    FROM pg_control_system() s, pg_stat_bgwriter w
"""


def read_incarnation(connection: extensions.connection) -> ServerIncarnation | None:
    """Read the incarnation of the server behind an idle connection.

    :returns: None when the user may not read it (``pg_control_system``)
    :raises psycopg2.Error: the connection is lost
    """
    with connection.cursor() as cursor:
        try:
            cursor.execute(INCARNATION)
        except psycopg2.errors.InsufficientPrivilege:
            return None
        row = cursor.fetchone()
        assert row is not None
        return ServerIncarnation(*row)

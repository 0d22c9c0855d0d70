"""Whether a transaction took effect, when the connection was lost while it committed.

Postgres answers by transaction ID (``pg_xact_status``), with one trap: an ID
is durable only once something of its transaction has reached the disk. A
server that crashes before that gives the same ID out *again*, and the answer
"committed" may then be about somebody else's transaction. So a
:class:`CommitTicket` remembers in which *life* of the server it was written, and:

- same life: the answer holds;
- another life, not committed: ours is lost for good, it may run again, for an
  ID that had reached the disk is never given out twice;
- another life, committed, and the ID lies at or above where the last checkpoint
  stood: it was given out in this life, so it is not ours, which is lost;
- another life, committed, otherwise: **nobody can say**. It may be ours, or that
  of a life in between which gave the ID out again. The first checkpoint of this
  life would only tell if there were none in between, and nothing counts lives.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import psycopg2

from synrepl.driver.connection import PostgresConnection
from synrepl.driver.incarnation import ServerIncarnation


@dataclass(frozen=True, slots=True)
class CommitTicket:
    """What is needed to ask for the outcome of a transaction later.

    :ivar life: None when this database user may not ask for it
    """

    xid: str
    backend: int
    incarnation: ServerIncarnation | None


class CommitStatus(Enum):
    """The outcome of a transaction."""

    COMMITTED = "it was committed"
    ABORTED = "it was not committed"
    PENDING = "it has not ended yet"
    CANNOT_COMPARE = "this database user may not ask which server it is (pg_control_system)"
    OTHER_SYSTEM = "another database system answers now"
    TOO_OLD = "the server has forgotten transactions of that age"
    PROMOTED = "a standby was promoted in between"
    RESTARTED = "the server was restarted in between, and may have given its ID to another"

    @property
    def known(self) -> bool:
        """True when it says whether the transaction took effect."""
        return self in (CommitStatus.COMMITTED, CommitStatus.ABORTED)


#: The backend that a lost connection leaves behind, if it still works for that transaction.
_END_BACKEND = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid = %s AND backend_xid = (%s::numeric %% 4294967296)::text::xid
"""

#: The next ID when the last checkpoint was made, which was in this life or at its beginning.
_CHECKPOINT_XID = """
    SELECT split_part(next_xid, ':', 1)::numeric * 4294967296 + split_part(next_xid, ':', 2)::numeric
    FROM pg_control_checkpoint()
"""

_IN_THE_FUTURE = "22023"


def look_up(connection: PostgresConnection, ticket: CommitTicket) -> CommitStatus:
    """The outcome of the transaction of ``ticket``, asked over another connection.

    A backend that still sits in the transaction, having not noticed that its
    client is gone, is ended, so that there is an outcome soon.

    :raises psycopg2.Error: this connection is lost as well
    """
    now = connection.incarnation
    if now is None or ticket.incarnation is None:
        return CommitStatus.CANNOT_COMPARE
    if now.system != ticket.incarnation.system:
        return CommitStatus.OTHER_SYSTEM
    if now.timeline is None:
        return CommitStatus.PENDING  # a standby may lag behind; wait for a primary
    status = _status(connection, ticket.xid)
    if status == "aborted":
        return CommitStatus.ABORTED
    if status is None:
        return CommitStatus.TOO_OLD
    if now == ticket.incarnation:
        if status == "committed":
            return CommitStatus.COMMITTED
        _end_backend(connection, ticket)
        return CommitStatus.PENDING
    if status == "in progress":  # the ID was given out again, so ours is lost
        return CommitStatus.ABORTED
    if now.timeline != ticket.incarnation.timeline:
        return CommitStatus.PROMOTED
    if int(ticket.xid) >= _checkpoint_xid(connection):
        return CommitStatus.ABORTED
    return CommitStatus.RESTARTED


def _status(connection: PostgresConnection, xid: str) -> str | None:
    with connection.cursor() as cursor:
        try:
            cursor.execute("SELECT pg_xact_status(%s::xid8)", (xid,))
        except psycopg2.Error as error:
            if error.pgcode == _IN_THE_FUTURE:  # forgotten in a crash and not given out again yet
                return "aborted"
            raise
        row = cursor.fetchone()
        assert row is not None
        status: str | None = row[0]
        return status


def _end_backend(connection: PostgresConnection, ticket: CommitTicket) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_END_BACKEND, (ticket.backend, ticket.xid))


def _checkpoint_xid(connection: PostgresConnection) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_CHECKPOINT_XID)
        row = cursor.fetchone()
    assert row is not None
    return int(row[0])

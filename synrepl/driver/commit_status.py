"""Looks up whether a transaction committed after its connection was lost during COMMIT.

Postgres answers by transaction ID (``pg_xact_status``), with one trap: an ID is
durable only once a record of its transaction has reached the disk. A server that
crashes before that assigns the same ID *again*, and the answer "committed" may then
be about another transaction. A :class:`CommitTicket` therefore records the
*incarnation* of the server in which the transaction ran:

- same incarnation: the answer holds;
- another incarnation, not committed: our transaction is lost for good and may run
  again, because an ID that had reached the disk is never assigned twice;
- another incarnation, committed, and the ID is at or above the next ID at the last
  checkpoint: it was assigned in this incarnation, so ours is lost;
- another incarnation, committed, otherwise: **unknown**. It may be ours, or that of
  an incarnation in between which assigned the ID again. The first checkpoint of this
  incarnation would settle it only if there were none in between, and nothing counts
  incarnations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import psycopg2

from synrepl.driver.connection import PostgresConnection
from synrepl.driver.incarnation import ServerIncarnation


@dataclass(frozen=True, slots=True)
class CommitTicket:
    """What is needed to look up the outcome of a transaction later.

    :ivar xid: transaction ID
    :ivar backend: process ID of the backend that ran it
    :ivar incarnation: of the server; None when this database user may not read it
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
    def is_known(self) -> bool:
        """Whether it is certain that the transaction committed or that it did not."""
        return self in (CommitStatus.COMMITTED, CommitStatus.ABORTED)


#: Terminates the backend of the lost connection, if it is still in that transaction.
_END_BACKEND = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid = %s AND backend_xid = (%s::numeric %% 4294967296)::text::xid
"""

#: The next transaction ID at the last checkpoint, made in this incarnation or at its start.
_CHECKPOINT_XID = """
    SELECT split_part(next_xid, ':', 1)::numeric * 4294967296 + split_part(next_xid, ':', 2)::numeric
    FROM pg_control_checkpoint()
"""

_IN_THE_FUTURE = "22023"


def look_up(connection: PostgresConnection, ticket: CommitTicket) -> CommitStatus:
    """Look up the outcome of the transaction of ``ticket`` over another connection.

    A backend that is still in the transaction, because it has not noticed that its
    client is gone, is terminated, so that there is an outcome soon.

    :raises psycopg2.Error: this connection is lost, too
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
    if status == "in progress":  # the ID was assigned again, so ours is lost
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
            if error.pgcode == _IN_THE_FUTURE:  # forgotten in a crash and not assigned again yet
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

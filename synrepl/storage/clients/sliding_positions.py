"""Connections of sliding sync: what each was told, as of its last answers."""

from __future__ import annotations

from typing import NamedTuple

from synrepl.storage.database import Transaction

#: Maximum number of connections of a user, on all devices. Beyond it, the one that was not used for longest ends.
MAX_CONNECTIONS = 100

#: Maximum number of answers to one position that a client may go on from: requests that it repeated.
MAX_FOLLOWING = 8

#: Seconds after which the use of a connection is noted anew.
TOUCH_AFTER_S = 24 * 3600.0


class ConnectionName(NamedTuple):
    """Whose a connection is, and what the client calls it."""

    user_id: str
    device_id: str
    conn_id: str


class PositionKey(NamedTuple):
    """A position of a connection, by the numbers of both."""

    connection_no: int
    position_no: int


class StoredPosition(NamedTuple):
    """What a connection was told.

    :ivar state: packed
    """

    name: ConnectionName
    state: bytes


def open_connection(txn: Transaction, name: ConnectionName, state: bytes) -> PositionKey:
    """Store the first position of a connection.

    One of the same name goes on until this one is used. Connections beyond :data:`MAX_CONNECTIONS` are deleted.
    """
    txn.execute(
        "WITH named AS (INSERT INTO synrepl._sliding_connections (user_id, device_id, conn_id)"
        " VALUES (%s, %s, %s) ON CONFLICT ON CONSTRAINT _sliding_connections_name"
        " DO UPDATE SET used_at = now() RETURNING connection_no)"
        " INSERT INTO synrepl._sliding_positions (connection_no, position_no, base_no, state)"
        " SELECT connection_no, nextval('synrepl._sliding_position_numbers'), 0, %s FROM named"
        " RETURNING connection_no, position_no",
        (*name, state),
    )
    key = PositionKey(*txn.fetchone())
    _keep(txn, key.connection_no, 0)
    txn.execute(
        "DELETE FROM synrepl._sliding_connections WHERE connection_no IN ("
        "SELECT connection_no FROM synrepl._sliding_connections WHERE user_id = %s"
        " ORDER BY used_at DESC, connection_no DESC OFFSET %s)",
        (name.user_id, MAX_CONNECTIONS),
    )
    return key


def follow_position(txn: Transaction, base: PositionKey, state: bytes) -> PositionKey | None:
    """Store a position that follows from one which the client has used; None if that is not there any more.

    All others than these are deleted.
    """
    txn.execute(
        "INSERT INTO synrepl._sliding_positions (connection_no, position_no, base_no, state)"
        " SELECT connection_no, nextval('synrepl._sliding_position_numbers'), position_no, %s"
        " FROM synrepl._sliding_positions WHERE connection_no = %s AND position_no = %s"
        " RETURNING connection_no, position_no",
        (state, *base),
    )
    found = txn.fetchone_or_none()
    if found is None:
        return None
    _keep(txn, *base)
    _touch(txn, base.connection_no)
    return PositionKey(*found)


def read_position(txn: Transaction, key: PositionKey) -> StoredPosition | None:
    """A position, whose connection is in use; None if it is not there."""
    txn.execute(
        "SELECT c.user_id, c.device_id, c.conn_id, p.state, c.used_at < now() - make_interval(secs => %s)"
        " FROM synrepl._sliding_positions p JOIN synrepl._sliding_connections c USING (connection_no)"
        " WHERE p.connection_no = %s AND p.position_no = %s",
        (TOUCH_AFTER_S, *key),
    )
    found = txn.fetchone_or_none()
    if found is None:
        return None
    *name, state, is_old = found
    if is_old:
        _touch(txn, key.connection_no)
    return StoredPosition(ConnectionName(*name), bytes(state))


def end_unused(txn: Transaction, older_than_s: float, at_most: int) -> int:
    """Delete connections that were not used for some time, up to ``at_most``; return their number."""
    txn.execute(
        "DELETE FROM synrepl._sliding_connections WHERE connection_no IN ("
        "SELECT connection_no FROM synrepl._sliding_connections"
        " WHERE used_at < now() - make_interval(secs => %s) LIMIT %s)",
        (older_than_s, at_most),
    )
    return txn.rowcount


def _keep(txn: Transaction, connection_no: int, base_no: int) -> None:
    """Delete all positions but a used one and the newest that follow from it; of a first one, only others like it."""
    txn.execute(
        "DELETE FROM synrepl._sliding_positions WHERE connection_no = %(connection)s"
        " AND (%(base)s <> 0 OR base_no = 0) AND position_no <> %(base)s AND position_no NOT IN ("
        "SELECT position_no FROM synrepl._sliding_positions WHERE connection_no = %(connection)s"
        " AND base_no = %(base)s ORDER BY position_no DESC LIMIT %(most)s)",
        {"connection": connection_no, "base": base_no, "most": MAX_FOLLOWING},
    )


def _touch(txn: Transaction, connection_no: int) -> None:
    txn.execute(
        "UPDATE synrepl._sliding_connections SET used_at = now() WHERE connection_no = %s"
        " AND used_at < now() - make_interval(secs => %s)",
        (connection_no, TOUCH_AFTER_S),
    )

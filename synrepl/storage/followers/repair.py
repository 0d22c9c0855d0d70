"""Manual changes of named followers: moving positions back, and removing followers."""

from __future__ import annotations

from typing import NamedTuple

from synrepl.core.errors import InputError
from synrepl.core.tokens import MAX_TOKEN, Token
from synrepl.storage.database import Transaction

_RESET = """
    UPDATE synrepl.{table} AS p SET position = least(p.position, %(to)s, bound.position),
           updated_at = now()
    FROM (
        SELECT f.ctid AS row, f.position AS before,
               CASE WHEN f.writer = '' THEN s.position
                    ELSE greatest(coalesce(w.position, s.position), 0) END AS position
        FROM synrepl.{table} AS f
        JOIN synrepl._streams AS s USING (stream)
        LEFT JOIN synrepl._writers AS w ON w.stream = f.stream AND w.writer = f.writer
        WHERE f.follower = %(follower)s AND (f.stream = %(stream)s OR %(stream)s IS NULL)
        FOR UPDATE OF f
    ) AS bound
    WHERE p.ctid = bound.row AND p.position > least(%(to)s, bound.position)
    RETURNING p.stream, p.writer, {handler}, bound.before, p.position
"""


class NoSuchFollower(InputError):
    """there is no follower {follower!r} on record{where}; 'synrepl followers list' shows which there are"""


class MovedPosition(NamedTuple):
    """A position that was moved back.

    :ivar writer: "" for the linear view
    :ivar handler: owner of the position; None for the follower's own
    """

    stream: str
    writer: str
    handler: str | None
    before: Token
    after: Token


def reset(
    txn: Transaction, follower: str, stream: str | None, to: Token | None
) -> list[MovedPosition]:
    """Move a follower's positions, and those of its handlers, back; none is moved forward.

    No position ends up beyond the recorded position of its writer, so that the follower gets
    all later facts.

    :param stream: the only stream to move in; None for all
    :param to: the new position; None for the recorded positions of the writers
    :returns: the moved positions
    :raises NoSuchFollower:
    """
    _check(txn, follower, stream)
    values = {"follower": follower, "stream": stream, "to": MAX_TOKEN if to is None else to}
    moved: list[MovedPosition] = []
    for table, handler in (("_followers", "NULL"), ("_handler_positions", "p.handler")):
        txn.execute(_RESET.format(table=table, handler=handler), values)
        moved += [MovedPosition(*row) for row in txn.fetchall()]
    return sorted(
        moved, key=lambda position: (position.stream, position.writer, position.handler or "")
    )


def remove(txn: Transaction, follower: str) -> None:
    """Remove a follower: its lease, its positions, and those of its handlers.

    Dead letters stay until they are discarded.

    :raises NoSuchFollower:
    """
    _check(txn, follower, None)
    for table in ("_follower_leases", "_followers", "_handler_positions"):
        txn.execute(f"DELETE FROM synrepl.{table} WHERE follower = %s", (follower,))


def _check(txn: Transaction, follower: str, stream: str | None) -> None:
    txn.execute(
        "SELECT follower FROM synrepl._followers WHERE follower = %(follower)s"
        " AND (stream = %(stream)s OR %(stream)s IS NULL)"
        " UNION SELECT follower FROM synrepl._handler_positions WHERE follower = %(follower)s"
        " AND (stream = %(stream)s OR %(stream)s IS NULL)"
        " UNION SELECT follower FROM synrepl._follower_leases"
        " WHERE follower = %(follower)s AND %(stream)s IS NULL",
        {"follower": follower, "stream": stream},
    )
    if txn.fetchone_or_none() is None:
        where = "" if stream is None else f" in stream {stream!r}"
        raise NoSuchFollower(follower=follower, where=where)

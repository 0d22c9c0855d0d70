"""Positions of the handlers of named followers, as functions of a transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from synrepl.core.tokens import Token
from synrepl.storage.database import Transaction

#: Handler, stream and writer; the writer is "" for the linear view.
Place = tuple[str, str, str]

POSITIONS = """
    SELECT handler, stream, writer, position, started_from, incarnation
    FROM synrepl._handler_positions WHERE follower = %s
"""

POSITION = """
    SELECT position FROM synrepl._handler_positions
    WHERE follower = %s AND handler = %s AND stream = %s AND writer = %s
"""

RECORD = """
    INSERT INTO synrepl._handler_positions AS p
        (follower, handler, stream, writer, position, started_from, incarnation)
    VALUES %s
    ON CONFLICT (follower, handler, stream, writer)
    DO UPDATE SET position = EXCLUDED.position, incarnation = EXCLUDED.incarnation, updated_at = now()
    WHERE p.position < EXCLUDED.position
"""

#: Each of these statements refuses a server that is not confirmed.
_ROW = "(%s, %s, %s, %s, %s, %s, synrepl.confirmed_incarnation())"

ADVANCE = """
    UPDATE synrepl._handler_positions
    SET position = %s, incarnation = synrepl.confirmed_incarnation(), updated_at = now()
    WHERE follower = %s AND handler = %s AND stream = %s AND writer = %s AND position = %s
"""

PUT = """
    UPDATE synrepl._handler_positions
    SET position = %s, incarnation = synrepl.confirmed_incarnation(), updated_at = now()
    WHERE follower = %s AND handler = %s AND stream = %s AND writer = %s
"""


class HandlerPosition(NamedTuple):
    """The recorded position of a handler in one stream of one writer.

    :ivar position: everything at or below it has been handled
    :ivar started_from: the token at which the handler started, so that it got nothing at or
        below it; None if it took over its follower's position
    :ivar incarnation: of the server on which it was recorded; set when it is recorded
    """

    position: Token
    started_from: Token | None
    incarnation: int = 1


def positions(txn: Transaction, follower: str) -> dict[Place, HandlerPosition]:
    """All positions of a follower's handlers, including those no longer configured."""
    txn.execute(POSITIONS, (follower,))
    return {
        (str(handler), str(stream), str(writer)): HandlerPosition(
            int(position), None if start is None else int(start), int(incarnation)
        )
        for handler, stream, writer, position, start, incarnation in txn.fetchall()
    }


def record(txn: Transaction, follower: str, at: Iterable[tuple[Place, HandlerPosition]]) -> None:
    """Record positions; none is moved back.

    :raises NotConfirmed:
    """
    rows = [
        (follower, *place, position.position, position.started_from)
        for place, position in sorted(at)
    ]
    if rows:
        txn.insert_many(RECORD, rows, _ROW)


def advance(txn: Transaction, follower: str, place: Place, after: Token, upto: Token) -> bool:
    """Move a position from exactly ``after`` to ``upto``, in the caller's transaction.

    This makes a transactional handler exactly-once: its effects and its position
    commit together, and a second attempt finds the position moved.

    :returns: False if the recorded position is not ``after``; nothing changes
    """
    txn.execute(ADVANCE, (upto, follower, *place, after))
    return txn.rowcount == 1


def position(txn: Transaction, follower: str, place: Place) -> Token | None:
    """One position; None when there is none."""
    row = txn.execute(POSITION, (follower, *place)).fetchone_or_none()
    return None if row is None else int(row[0])


def put(txn: Transaction, follower: str, place: Place, at: Token) -> None:
    """Set a recorded position, even to a lower token, because the writer restarted."""
    txn.execute(PUT, (at, follower, *place))

"""Where named followers stand, on record, and until when that counts for trimming."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from synrepl.core.tokens import Token
from synrepl.storage.database import Transaction

Positions = Mapping[tuple[str, str], Token]


def positions(txn: Transaction, follower: str) -> dict[tuple[str, str], Token]:
    """A follower's positions by (stream, writer)."""
    txn.execute(
        "SELECT stream, writer, position FROM synrepl._followers WHERE follower = %s", (follower,)
    )
    return {(stream, writer): int(position) for stream, writer, position in txn.fetchall()}


def record(txn: Transaction, follower: str, at: Positions) -> None:
    """Put positions on record; one that would go back is left as it is."""
    for (stream, writer), position in sorted(at.items()):
        txn.execute(
            """
            INSERT INTO synrepl._followers AS f (follower, stream, writer, position)
            VALUES (%s, %s, %s, %s)
            ON CONFLICT (follower, stream, writer)
            DO UPDATE SET position = EXCLUDED.position, updated_at = now()
            WHERE f.position < EXCLUDED.position
            """,
            (follower, stream, writer, position),
        )


def advance(
    txn: Transaction, follower: str, stream: str, writer: str, after: Token, upto: Token
) -> bool:
    """Move a position from exactly ``after`` to ``upto``, in the caller's transaction.

    This is what makes a transactional handler exactly-once: its effects and its
    position commit together, and whoever comes second finds the position moved.

    :returns: False when the position on record is not ``after`` (nothing changed)
    """
    txn.execute(
        """
        INSERT INTO synrepl._followers AS f (follower, stream, writer, position)
        SELECT new.follower, new.stream, new.writer, new.upto
        FROM (VALUES (%s, %s, %s, %s::bigint, %s::bigint))
             AS new (follower, stream, writer, after, upto)
        LEFT JOIN synrepl._followers AS old USING (follower, stream, writer)
        WHERE coalesce(old.position, new.after) = new.after
        ON CONFLICT (follower, stream, writer)
        DO UPDATE SET position = EXCLUDED.position, updated_at = now()
        WHERE f.position = %s
        """,
        (follower, stream, writer, after, upto, after),
    )
    return txn.rowcount == 1


def forget(txn: Transaction, follower: str, stream: str, writer: str) -> None:
    """Take a position off the record: the writer has started again below it."""
    txn.execute(
        "DELETE FROM synrepl._followers WHERE follower = %s AND stream = %s AND writer = %s",
        (follower, stream, writer),
    )


def renew_lease(
    txn: Transaction, follower: str, streams: Sequence[str] | None, lease_s: float
) -> None:
    """Have a follower's unacknowledged facts kept, for ``lease_s`` seconds from now.

    :param streams: the names of those that it follows; None for all
    """
    txn.execute(
        """
        INSERT INTO synrepl._follower_leases (follower, streams, expires_at)
        VALUES (%s, %s::text[], now() + make_interval(secs => %s))
        ON CONFLICT (follower)
        DO UPDATE SET streams = EXCLUDED.streams, expires_at = EXCLUDED.expires_at
        """,
        (follower, None if streams is None else list(streams), lease_s),
    )

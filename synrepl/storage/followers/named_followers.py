"""Recorded positions of named followers, and the leases that protect their facts from trimming."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from synrepl.core.tokens import Token
from synrepl.storage import incarnations
from synrepl.storage.database import Transaction
from synrepl.storage.store import NamedFollower

Positions = Mapping[tuple[str, str], Token]

POSITIONS = "SELECT stream, writer, position FROM synrepl._followers WHERE follower = %s"

INHERITED = """
    UPDATE synrepl._followers SET by_handler = true
    WHERE follower = %s AND NOT by_handler RETURNING stream, writer, position
"""

RECORD = """
    INSERT INTO synrepl._followers AS f (follower, stream, writer, position, by_handler)
    VALUES %s
    ON CONFLICT (follower, stream, writer)
    DO UPDATE SET position = EXCLUDED.position, updated_at = now()
    WHERE f.position < EXCLUDED.position
"""

LOWER = """
    UPDATE synrepl._followers SET position = %s, updated_at = now()
    WHERE follower = %s AND stream = %s AND position > %s
"""

FORGET = "DELETE FROM synrepl._followers WHERE follower = %s AND stream = %s AND writer = %s"


def positions(txn: Transaction, follower: str) -> dict[tuple[str, str], Token]:
    """A follower's positions by (stream, writer)."""
    return _positions(txn.execute(POSITIONS, (follower,)))


def inherited(txn: Transaction, follower: str) -> dict[tuple[str, str], Token]:
    """Take over the positions from before handlers had their own; only the first call returns them."""
    return _positions(txn.execute(INHERITED, (follower,)))


def record(txn: Transaction, follower: str, at: Positions, *, by_handler: bool = False) -> None:
    """Record positions; none is moved back.

    :param by_handler: whether its handlers have recorded positions, too, or it has no handlers
    :raises NotConfirmed: the positions would refer to another server
    """
    incarnations.confirmed(txn)
    rows = [(follower, *key, position, by_handler) for key, position in sorted(at.items())]
    if rows:
        txn.insert_many(RECORD, rows)


def lower(txn: Transaction, follower: str, stream: str, at: Token) -> None:
    """Move the positions of a stream back to ``at``, for a handler that starts there.

    From then on, the facts it needs are not trimmed.
    """
    txn.execute(LOWER, (at, follower, stream, at))


def forget(txn: Transaction, follower: str, stream: str, writer: str) -> None:
    """Delete a position, because the writer restarted below it."""
    txn.execute(FORGET, (follower, stream, writer))


def _positions(found: Transaction) -> dict[tuple[str, str], Token]:
    return {
        (str(stream), str(writer)): int(position) for stream, writer, position in found.fetchall()
    }


def renew_lease(
    txn: Transaction,
    follower: str,
    streams: Sequence[str] | None,
    lease_s: float,
    *,
    is_running: bool = False,
) -> None:
    """Retain a follower's unacknowledged facts for ``lease_s`` seconds from now.

    :param streams: names of the streams that it follows; None for all
    :param is_running: whether a running process renews the lease, as a heartbeat
    """
    txn.execute(
        """
        INSERT INTO synrepl._follower_leases (follower, streams, expires_at, seen_at)
        VALUES (%s, %s::text[], now() + make_interval(secs => %s), CASE WHEN %s THEN now() END)
        ON CONFLICT (follower)
        DO UPDATE SET streams = EXCLUDED.streams, expires_at = EXCLUDED.expires_at,
                      seen_at = EXCLUDED.seen_at
        """,
        (follower, None if streams is None else list(streams), lease_s, is_running),
    )


def named(txn: Transaction) -> list[NamedFollower]:
    """All named followers, by name."""
    positions: dict[str, dict[tuple[str, str], Token]] = {}
    for follower, stream, writer, position in txn.execute(
        "SELECT follower, stream, writer, position FROM synrepl._followers"
    ).fetchall():
        positions.setdefault(str(follower), {})[str(stream), str(writer)] = int(position)
    handlers: dict[str, dict[tuple[str, str, str], Token]] = {}
    for follower, handler, stream, writer, position in txn.execute(
        "SELECT follower, handler, stream, writer, position FROM synrepl._handler_positions"
    ).fetchall():
        place = str(handler), str(stream), str(writer)
        handlers.setdefault(str(follower), {})[place] = int(position)
    txn.execute(
        "SELECT follower, streams, extract(epoch FROM expires_at - clock_timestamp())::float8,"
        " extract(epoch FROM clock_timestamp() - seen_at)::float8 FROM synrepl._follower_leases"
    )
    leases = {str(name): lease for name, *lease in txn.fetchall()}
    found = []
    for name in sorted({*positions, *handlers, *leases}):
        streams, left, seen = leases.get(name, (None, None, None))
        found.append(
            NamedFollower(
                name,
                None if streams is None else frozenset(streams),
                None if left is None else float(left),
                None if seen is None else float(seen),
                positions.get(name, {}),
                handlers.get(name, {}),
            )
        )
    return found

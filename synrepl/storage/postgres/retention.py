"""Which rows of a stream may be trimmed, and trimming them, as functions of a transaction."""

from __future__ import annotations

from synrepl.core.tokens import Range, Token
from synrepl.storage.database import Transaction
from synrepl.storage.position_marks import PositionMark, add_mark, aged_positions
from synrepl.storage.store import AgedPositions, TrimResult
from synrepl.storage.tables import id_bounds, table_name
from synrepl.streams.definition import Stream


def mark(txn: Transaction, stream: Stream, keep_s: float, max_s: float) -> AgedPositions:
    """Mark the stream's current position; return those ``keep_s`` and ``max_s`` seconds ago."""
    txn.execute(
        "SELECT extract(epoch FROM now())::float8, position FROM synrepl._streams WHERE stream = %s",
        (stream.name,),
    )
    now, position = txn.fetchone()
    txn.execute(
        "SELECT extract(epoch FROM at)::float8, token FROM synrepl._stream_marks WHERE stream = %s",
        (stream.name,),
    )
    before = {PositionMark(at, int(token)) for at, token in txn.fetchall()}
    marks = add_mark(before, now, int(position), keep_s, max_s)
    gone = sorted(mark.token for mark in before.difference(marks))
    if gone:
        txn.execute(
            "DELETE FROM synrepl._stream_marks WHERE stream = %s AND token = ANY(%s)",
            (stream.name, gone),
        )
    for new in set(marks) - before:
        # The mark gets the time of this statement, which is after the position was read.
        txn.execute(
            "INSERT INTO synrepl._stream_marks (stream, token) VALUES (%s, %s)"
            " ON CONFLICT (stream, token) DO NOTHING",
            (stream.name, new.token),
        )
    return aged_positions(marks, now, int(position), keep_s, max_s)


def trim(txn: Transaction, stream: Stream, cap: Token, forced: Token, limit: int) -> TrimResult:
    """Delete the oldest facts that may be trimmed; see :meth:`~.store.FactStore.trim`."""
    # A concurrent trim waits here, and then sees what is left.
    txn.execute(
        "SELECT trimmed, least(position, %s::bigint) FROM synrepl._streams WHERE stream = %s"
        " FOR NO KEY UPDATE",
        (cap, stream.name),
    )
    trimmed, upto = map(int, txn.fetchone())
    if upto <= trimmed:
        return TrimResult(trimmed, 0, None)
    bound, held_by = _find_bound(txn, stream, Range(trimmed, upto), forced, limit)
    if bound is None:
        return TrimResult(trimmed, 0, held_by)
    # The record comes first; without it the table refuses to delete its rows.
    txn.execute("UPDATE synrepl._streams SET trimmed = %s WHERE stream = %s", (bound, stream.name))
    rows = _delete(txn, stream, Range(trimmed, bound))
    return TrimResult(bound, rows, held_by)


def _find_bound(
    txn: Transaction, stream: Stream, span: Range, forced: Token, limit: int
) -> tuple[Token | None, str | None]:
    """The last fact of a window up to which all may be trimmed, and the follower that holds the next.

    For each writer in the window, the follower that is furthest behind decides.
    A follower of the linear view acknowledges the facts of all writers at once.
    """
    low, high = id_bounds(stream, span)
    txn.execute(
        f"""
        WITH seen AS MATERIALIZED (
            SELECT abs(stream_id) AS token, writer FROM {table_name(stream)}
            WHERE stream_id BETWEEN %(low)s AND %(high)s
            ORDER BY stream_id {"DESC" if stream.counts_down else "ASC"} LIMIT %(limit)s
        ), acknowledged AS (
            SELECT DISTINCT ON (w.writer) w.writer, l.follower,
                   greatest(own.position, linear.position, 0) AS upto
            FROM (SELECT DISTINCT writer FROM seen) AS w
            CROSS JOIN synrepl._follower_leases AS l
            LEFT JOIN synrepl._followers AS own ON own.follower = l.follower
                 AND own.stream = %(stream)s AND own.writer = w.writer
            LEFT JOIN synrepl._followers AS linear ON linear.follower = l.follower
                 AND linear.stream = %(stream)s AND linear.writer = ''
            WHERE l.expires_at > now() AND (l.streams IS NULL OR %(stream)s = ANY(l.streams))
            ORDER BY w.writer, upto, l.follower
        ), held AS (
            SELECT token, follower FROM seen JOIN acknowledged USING (writer)
            WHERE token > greatest(upto, %(forced)s) ORDER BY token LIMIT 1
        )
        SELECT (SELECT max(token) FROM seen
                WHERE (token < (SELECT token FROM held)) IS NOT FALSE),
               (SELECT follower FROM held)
        """,
        {"stream": stream.name, "low": low, "high": high, "limit": limit, "forced": forced},
    )
    bound, held_by = txn.fetchone()
    return None if bound is None else int(bound), held_by


def _delete(txn: Transaction, stream: Stream, span: Range) -> int:
    """Delete a range, and record how far each writer is trimmed; return the number of rows."""
    low, high = id_bounds(stream, span)
    txn.execute(
        f"""
        WITH gone AS (
            DELETE FROM {table_name(stream)} WHERE stream_id BETWEEN %(low)s AND %(high)s
            RETURNING writer, abs(stream_id) AS token
        ), last AS (
            SELECT writer, max(token) AS token FROM gone GROUP BY writer
        ), locked AS (  -- in the order in which positions are recorded
            SELECT w.writer, last.token FROM synrepl._writers AS w JOIN last USING (writer)
            WHERE w.stream = %(stream)s ORDER BY w.writer FOR NO KEY UPDATE OF w
        ), recorded AS (
            UPDATE synrepl._writers AS w SET trimmed = greatest(w.trimmed, locked.token)
            FROM locked WHERE w.stream = %(stream)s AND w.writer = locked.writer
        )
        SELECT count(*) FROM gone
        """,
        {"stream": stream.name, "low": low, "high": high},
    )
    return int(txn.fetchone()[0])

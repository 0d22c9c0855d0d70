"""Appends staged rows with their own stream IDs and writers, for replays.

A stream is replayed above everything that it has, or not at all. From the first statement to
the commit no other transaction can take an ID of it: this one holds exclusively the lock that
every writing transaction shares (:mod:`synrepl.storage.store`).

The sequence is moved in a second step, after the rows are committed (:func:`move_sequence`),
because a rollback does not undo it. If it were moved first and the rows rolled back, it would
prove to every observer that the IDs are settled, and they could never be written. Until it is
moved, the recorded position, which is committed with the rows, covers their IDs; new IDs are
taken above it (``synrepl.reserve``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from synrepl.core.errors import InputError, Refused, Unavailable
from synrepl.core.tokens import Token
from synrepl.storage import incarnations, writers
from synrepl.storage.database import Transaction, value
from synrepl.storage.staging.staging import (
    StagedAttempt,
    StagingJob,
    StagingResult,
    check_count,
    naming_refusals,
    recall,
    remember,
    staged_column,
    staged_table,
)
from synrepl.storage.writers import (
    FIRST_RESERVATION,
    LOCK_CLASS_BASE,
    SESSION,
    TRANSACTION,
    lock_class,
)

#: From this distance on, a sequence is set instead of advanced, as in ``synrepl.catch_up``.
FAR = 100_000


class BadReplay(InputError):
    """the rows for stream {stream!r} cannot keep their positions: {reason}; nothing was written"""


class PositionsTaken(Refused):
    """stream {stream!r} has given out IDs up to {highest}, and the rows to be replayed begin at {first}: they keep their IDs only above everything that is there; nothing was written, replay into a database where the stream is empty from there on and no process writes, or let it give out new IDs"""


class StreamBusy(Unavailable):
    """writer {writer!r} of stream {stream!r} has a transaction open or IDs reserved, so rows cannot be put in with their own IDs; nothing was written, try again when it is done ('synrepl writers list' shows it)"""


class _Replay(NamedTuple):
    """The staged rows of a replay: their number, and their first and last tokens."""

    rows: int
    first: Token
    last: Token


class _Numbering(NamedTuple):
    """The sequence of a stream.

    :ivar last: the last token that it gave out
    :ivar together: other streams that share it
    """

    sequence: str
    counts_down: bool
    last: Token
    together: Sequence[str]


def append_with_ids(
    txn: Transaction, job: StagingJob, attempts: Sequence[StagedAttempt], cells: Sequence[str]
) -> StagingResult:
    """Write staged rows at their own IDs; do nothing if exactly these rows exist already.

    Their writers must be registered before (:func:`register_writers`), and the sequence
    must be moved after the commit (:func:`move_sequence`).

    :raises BadReplay: the IDs or row numbers are not valid for the stream
    :raises NotConfirmed: the server was promoted or restored, and is not confirmed yet
    :raises PositionsTaken:
    :raises StreamBusy:
    :raises StagedRowsLost:
    :raises WriterTaken:
    :raises Drained:
    :raises WriterRemoved:
    :raises StreamNotMade:
    """
    incarnations.confirmed(txn)
    numbers = [attempt.attempt for attempt in attempts]
    rows = sum(attempt.rows for attempt in attempts)
    before = recall(txn, job, rows)
    if before is not None:
        return before
    done = StagingResult(0)
    if rows:
        replay = _checked(txn, job.stream, numbers)
        check_count(job.stream, replay.rows, rows)
        _lock_out_writers(txn, job.stream)
        highest = _highest_taken(txn, job.stream)
        if highest >= replay.first:
            if not _rows_exist(txn, job.stream, numbers, replay, cells):
                raise PositionsTaken(stream=job.stream, highest=highest, first=replay.first)
            return StagingResult(0, replay.first, replay.last, replayed=True)
        for writer in _writers(txn, job.stream, numbers):
            with naming_refusals(job.stream, writer):
                txn.execute("SELECT synrepl.take_place(%s, %s)", (job.stream, writer))
        _write(txn, job.stream, numbers, cells)
        _record_positions(txn, job.stream, replay.last)
        done = StagingResult(rows, replay.first, replay.last)
    remember(txn, job, rows, done)
    return done


def settle(txn: Transaction, stream: str, upto: Token) -> None:
    """Record that the stream gets no more facts at or below a token.

    No unused ID up to the token is given out afterwards, so positions that followers know from
    elsewhere stay valid. The sequence must be moved after the commit.

    :raises StreamBusy:
    :raises NotConfirmed:
    """
    incarnations.confirmed(txn)
    sql = "SELECT position FROM synrepl._streams WHERE stream = %s"
    if int(value(txn, sql, (stream,))) >= upto:
        return
    _lock_out_writers(txn, stream)
    _record_positions(txn, stream, upto)
    # Writers that have written nothing are not announced, so they stay at 0.
    txn.execute(
        "UPDATE synrepl._writers SET position = %s"
        " WHERE stream = %s AND position > 0 AND position < %s",
        (upto, stream, upto),
    )


def move_sequence(txn: Transaction, stream: str) -> None:
    """Move a sequence forward that is behind its stream; it is never moved back.

    Call it after the commit. No writer has to be locked out, because none takes an ID up to the
    recorded position: the IDs are skipped.
    """
    numbering = _numbering(txn, stream)
    upto = _highest_known(txn, stream)
    if numbering.last >= upto:
        return
    # One at a time: two of them would use up twice as many.
    key = (lock_class(0), numbering.sequence)
    txn.execute("SELECT pg_advisory_xact_lock(%s, %s::regclass::integer)", key)
    last = _numbering(txn, stream).last
    if upto - last > FAR:
        # IDs that others take between the two statements cannot bridge the distance.
        token = -upto if numbering.counts_down else upto
        txn.execute("SELECT setval(%s::regclass, %s)", (numbering.sequence, token))
    elif upto > last:
        txn.execute(
            "SELECT count(nextval(%s::regclass)) FROM generate_series(1, %s)",
            (numbering.sequence, upto - last),
        )
    txn.execute("SELECT pg_notify('synrepl', %s)", (stream,))


def register_writers(txn: Transaction, stream: str, attempts: Sequence[StagedAttempt]) -> None:
    """Register the writers of staged rows; commit it before the rows are written.

    :raises WriterRemoved:
    :raises StreamNotMade:
    :raises NotConfirmed:
    """
    incarnations.confirmed(txn)
    for writer in _writers(txn, stream, [attempt.attempt for attempt in attempts]):
        writers.register(txn, stream, writer)


def _writers(txn: Transaction, stream: str, attempts: Sequence[int]) -> list[str]:
    txn.execute(
        f"SELECT DISTINCT writer FROM {staged_table(stream)} WHERE attempt = ANY(%s) ORDER BY 1",
        (list(attempts),),
    )
    return [row[0] for row in txn.fetchall()]


def _counts_down(txn: Transaction, stream: str) -> bool:
    return bool(value(txn, "SELECT counts_down FROM synrepl._streams WHERE stream = %s", (stream,)))


def _checked(txn: Transaction, stream: str, attempts: list[int]) -> _Replay:
    """Check that the staged rows form complete facts; return their number and token range."""
    table = staged_table(stream)
    sign = "-" if _counts_down(txn, stream) else ""
    txn.execute(
        f"SELECT count(*), coalesce(min({sign}stream_id), 1), coalesce(max({sign}stream_id), 1)"
        f" FROM {table} WHERE attempt = ANY(%s)",
        (attempts,),
    )
    replay = _Replay(*map(int, txn.fetchone()))
    if replay.first <= 0:
        way = "below" if sign else "above"
        raise BadReplay(stream=stream, reason=f"its stream IDs are all {way} 0, and one is not")
    txn.execute(
        f"SELECT stream_id FROM {table} WHERE attempt = ANY(%s) GROUP BY stream_id"
        " HAVING min(row_no) <> 0 OR max(row_no) <> count(*) - 1 OR count(DISTINCT row_no) <> count(*)"
        " OR min(writer) <> max(writer) ORDER BY abs(stream_id) LIMIT 1",
        (attempts,),
    )
    broken = txn.fetchone_or_none()
    if broken is not None:
        reason = (
            f"the rows of fact {broken[0]} are not numbered 0, 1, 2, …, or have several writers"
        )
        raise BadReplay(stream=stream, reason=reason)
    return replay


def _lock_out_writers(txn: Transaction, stream: str) -> None:
    """Prevent other transactions from taking IDs of the stream's sequence until this one ends.

    Every ID of the stream that was given out is settled then.

    :raises StreamBusy:
    """
    # In the lock order of recording positions and of making tables. New writers wait, and so
    # does a replay of another stream.
    txn.execute("LOCK TABLE synrepl._streams IN ROW EXCLUSIVE MODE")
    txn.execute("SELECT FROM synrepl._streams WHERE stream = %s FOR NO KEY UPDATE", (stream,))
    txn.execute("LOCK TABLE synrepl._writers IN SHARE ROW EXCLUSIVE MODE")
    txn.execute(
        "SELECT w.number, w.stream, w.writer, w.held FROM synrepl._writers w"
        " JOIN synrepl._streams s USING (stream)"
        " WHERE s.sequence = (SELECT sequence FROM synrepl._streams WHERE stream = %s)"
        " AND NOT w.removed ORDER BY w.number",
        (stream,),
    )
    for number, name, writer, held in txn.fetchall():
        # The locks are only tried, so there is no deadlock.
        key = (lock_class(number), TRANSACTION)
        if not value(txn, "SELECT pg_try_advisory_xact_lock(%s, %s)", key):
            raise StreamBusy(stream=name, writer=writer)
        if held and name == stream:
            # The reservations of a dead writer count as settled only after it is fenced.
            writers.fence(txn, stream, writer)
    reserved = _locks(txn, stream, range(FIRST_RESERVATION, 2**31))
    if reserved:
        raise StreamBusy(stream=stream, writer=reserved[0])
    # A later transaction with an older snapshot would take IDs above the old position.
    txn.execute(
        "UPDATE synrepl._writers w SET generation = generation + 1"
        " FROM synrepl._streams s WHERE s.stream = w.stream"
        " AND s.sequence = (SELECT sequence FROM synrepl._streams WHERE stream = %s)",
        (stream,),
    )


def _locks(txn: Transaction, stream: str, wanted: range) -> list[str]:
    """The writers of a stream for which one of these locks is held."""
    txn.execute(
        "SELECT w.writer FROM synrepl._writers w JOIN pg_locks l"
        " ON l.classid = (%s + w.number)::oid AND l.objid::bigint BETWEEN %s AND %s"
        " WHERE w.stream = %s AND l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " ORDER BY 1",
        (LOCK_CLASS_BASE, wanted[0], wanted[-1], stream),
    )
    return [row[0] for row in txn.fetchall()]


def _numbering(txn: Transaction, stream: str) -> _Numbering:
    txn.execute(
        "SELECT s.sequence, s.counts_down, (SELECT array_agg(x.stream) FROM synrepl._streams x"
        " WHERE x.sequence = s.sequence AND x.stream <> s.stream)"
        " FROM synrepl._streams s WHERE s.stream = %s",
        (stream,),
    )
    sequence, counts_down, together = txn.fetchone()
    last = value(txn, f"SELECT CASE WHEN is_called THEN abs(last_value) ELSE 0 END FROM {sequence}")
    return _Numbering(str(sequence), bool(counts_down), int(last), together or ())


def _highest_known(txn: Transaction, stream: str) -> Token:
    """The largest token of a stream in its table or its recorded positions."""
    return int(
        value(
            txn,
            f"SELECT greatest(s.position, s.trimmed, (SELECT max(position) FROM synrepl._writers"
            " WHERE stream = s.stream),"
            f' (SELECT greatest(max(stream_id), -min(stream_id)) FROM synrepl."{stream}"))'
            " FROM synrepl._streams s WHERE s.stream = %s",
            (stream,),
        )
    )


def _highest_taken(txn: Transaction, stream: str) -> Token:
    """The largest token of a stream that can have been given out or announced.

    The sequence is ahead of the table where transactions were rolled back or facts have no
    rows. Tokens given to streams that share the sequence do not count, unless a process that
    writes here may have announced them.
    """
    known, numbering = _highest_known(txn, stream), _numbering(txn, stream)
    if numbering.last <= known:
        return known
    others = max((_highest_known(txn, other) for other in numbering.together), default=0)
    if numbering.last <= others and not _locks(txn, stream, range(SESSION, SESSION + 1)):
        return known
    return numbering.last


def _record_positions(txn: Transaction, stream: str, upto: Token) -> None:
    """Record the position of the stream and of each of its writers."""
    txn.execute("SELECT counts_down, position FROM synrepl._streams WHERE stream = %s", (stream,))
    counts_down, recorded = txn.fetchone()
    low, high = int(recorded) + 1, upto
    if counts_down:
        low, high = -high, -low
    txn.execute(
        "UPDATE synrepl._writers w SET position = found.token"
        f' FROM (SELECT writer, max(abs(stream_id)) AS token FROM synrepl."{stream}"'
        "  WHERE stream_id BETWEEN %s AND %s GROUP BY writer) AS found"
        " WHERE w.stream = %s AND w.writer = found.writer AND w.position < found.token",
        (low, high, stream),
    )
    writers.record_linear(txn, stream, upto)


def _rows_exist(
    txn: Transaction, stream: str, attempts: list[int], replay: _Replay, cells: Sequence[str]
) -> bool:
    """Whether the stream has exactly these rows in their range."""
    low, high = replay.first, replay.last
    if _counts_down(txn, stream):
        low, high = -high, -low
    there = value(
        txn,
        f'SELECT count(*) FROM synrepl."{stream}" WHERE stream_id BETWEEN %s AND %s',
        (low, high),
    )
    if int(there) != replay.rows:
        return False
    same = "".join(
        f' AND t."{name}"::text IS NOT DISTINCT FROM s."{staged_column(name)}"::text'
        for name in cells
    )
    equal = value(
        txn,
        f'SELECT count(*) FROM {staged_table(stream)} s JOIN synrepl."{stream}" t'
        f" ON t.stream_id = s.stream_id AND t.row_no = s.row_no AND t.writer = s.writer{same}"
        " WHERE s.attempt = ANY(%s)",
        (attempts,),
    )
    return int(equal) == replay.rows


def _write(txn: Transaction, stream: str, attempts: list[int], cells: Sequence[str]) -> None:
    names = "".join(f', "{name}"' for name in cells)
    picked = "".join(f', "{staged_column(name)}"' for name in cells)
    txn.execute(
        f'INSERT INTO synrepl."{stream}" (stream_id, row_no, writer{names})'
        f" SELECT stream_id, row_no, writer{picked} FROM {staged_table(stream)}"
        " WHERE attempt = ANY(%s) ORDER BY abs(stream_id), row_no",
        (attempts,),
    )

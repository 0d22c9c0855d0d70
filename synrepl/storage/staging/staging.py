"""Staging tables: rows staged by the tasks of a job, and appended when the job commits.

Each attempt at a task stages under its own number, so a failed or speculative attempt does no
harm: only the attempts that the job names are appended. The staging tables are unlogged. A
server crash may lose their rows, which the row count shows (:class:`StagedRowsLost`); the job is
then run again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from synrepl.core.errors import Unavailable
from synrepl.core.tokens import Token
from synrepl.storage import idempotency, writers
from synrepl.storage.database import LockNotAvailable, RaisedByDatabase, Transaction, value
from synrepl.storage.store import AppendResult, Drained, StreamNotMade, WriterRemoved, WriterTaken
from synrepl.storage.tables import HEAD
from synrepl.streams.columns import Column

#: Age in seconds after which abandoned rows are removed.
LEFTOVERS_S = 86_400.0

_NO_WRITER, _TAKEN, _DRAINED, _REMOVED = "SY003", "SY004", "SY006", "SY007"

#: The columns before the cells of a staged row.
_STAGED_HEAD = ("attempt", "ordinal")


class StagedRowsLost(Unavailable):
    """{found} of {rows} rows that were staged for stream {stream!r} are there: the database server crashed in between, or the job was cleaned up as abandoned; nothing was written, run the job again"""


@dataclass(frozen=True, slots=True)
class StagedAttempt:
    """The result of staging one attempt.

    :ivar rows: number of valid rows
    :ivar bad: number of rows that do not fit their columns
    """

    attempt: int
    rows: int
    bad: int = 0


@dataclass(frozen=True, slots=True)
class StagingJob:
    """A job that appends staged rows.

    :ivar job: the name under which its attempts are staged
    :ivar key: idempotency key of a job without batches; a repeated job writes nothing
    :ivar batch: batch number of a streaming job
    """

    stream: str
    writer: str
    job: str
    key: str | None = None
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class StagingResult:
    """The result of a job.

    :ivar rows: number of new facts
    :ivar first: their smallest token; 0 if there are none
    :ivar last: their largest token; 0 if there are none
    :ivar bad: number of quarantined rows
    :ivar replayed: whether the job was done before, so nothing was written
    """

    rows: int
    first: Token = 0
    last: Token = 0
    bad: int = 0
    replayed: bool = False


def staged_table(stream: str) -> str:
    """The qualified, quoted name of the table for a stream's staged rows."""
    return f'synrepl."_{stream}_staged"'


def staged_column(name: str) -> str:
    """The name of a column in the staging table, which has columns of its own."""
    return f"_{name}" if name in _STAGED_HEAD else name


def ensure_staging(txn: Transaction, stream: str, cells: Iterable[Column]) -> None:
    """Create a stream's staging table, or add new columns."""
    table = staged_table(stream)
    if not _lacking(txn, stream, cells):
        return
    txn.execute("LOCK TABLE synrepl._staging IN SHARE ROW EXCLUSIVE MODE")
    txn.execute(
        f"CREATE UNLOGGED TABLE IF NOT EXISTS {table} (attempt bigint NOT NULL,"
        " ordinal bigint NOT NULL, stream_id bigint, row_no integer, writer text)"
    )
    txn.execute(f'CREATE INDEX IF NOT EXISTS "_{stream}_staged_attempt" ON {table} (attempt)')
    for column in _lacking(txn, stream, cells):
        name = staged_column(column.name)
        txn.execute(f'ALTER TABLE {table} ADD COLUMN "{name}" {column.type.sql}')


def stage(
    txn: Transaction,
    stream: str,
    job: str,
    attempt: int,
    columns: Sequence[str],
    rows: Iterable[bytes],
    bad: Iterable[bytes],
) -> StagedAttempt:
    """Stage the rows of one attempt.

    :param columns: columns of the rows after ``attempt`` and ``ordinal``
    :param rows: rows in the text format of COPY; consumed before ``bad``
    :param bad: reasons and rows as JSON, in the text format of COPY
    """
    txn.execute(
        "INSERT INTO synrepl._staging (attempt, job, stream) VALUES (%s, %s, %s)",
        (attempt, job, stream),
    )
    names = ", ".join(f'"{name}"' for name in (*_STAGED_HEAD, *map(staged_column, columns)))
    fitting = txn.copy_in(f"COPY {staged_table(stream)} ({names}) FROM STDIN", rows)
    misfits = txn.copy_in("COPY synrepl._staged_bad (attempt, reason, row) FROM STDIN", bad)
    return StagedAttempt(attempt, fitting, misfits)


def append_staged(
    txn: Transaction, job: StagingJob, attempts: Sequence[StagedAttempt], cells: Sequence[str]
) -> StagingResult:
    """Append the rows of attempts, one fact each, in the order of attempts and rows.

    :param cells: the columns that the job has; others become NULL
    :raises WriterTaken:
    :raises Drained:
    :raises WriterRemoved:
    :raises StreamNotMade:
    :raises KeyReused:
    :raises StagedRowsLost:
    """
    rows = sum(attempt.rows for attempt in attempts)
    bad = sum(attempt.bad for attempt in attempts)
    before = recall(txn, job, rows)
    if before is not None:
        return before
    appended = StagingResult(0)
    if rows:
        appended = _copy_staged(txn, job, attempts, rows, cells)
    if bad:
        _quarantine(txn, job, attempts)
    done = StagingResult(appended.rows, appended.first, appended.last, bad)
    remember(txn, job, rows, done)
    return done


def recall(txn: Transaction, job: StagingJob, rows: int) -> StagingResult | None:
    """The result of an earlier run of this job; None if there was none.

    :raises KeyReused: its key was used with another number of rows
    """
    if job.batch is not None:
        # One at a time: an older driver that still runs waits here, and finds the batch done.
        txn.execute(
            "INSERT INTO synrepl._job_batches (stream, job, batch) VALUES (%s, %s, -1)"
            " ON CONFLICT (stream, job) DO NOTHING",
            (job.stream, job.job),
        )
        last = value(
            txn,
            "SELECT batch FROM synrepl._job_batches WHERE stream = %s AND job = %s FOR UPDATE",
            (job.stream, job.job),
        )
        return StagingResult(0, replayed=True) if int(last) >= job.batch else None
    if job.key is None:
        return None
    before = idempotency.recall(txn, job.stream, job.key, _digest(rows), job.writer)
    if before is None:
        return None
    first, last = before.tokens or (0, 0)
    return StagingResult(0, first, last, replayed=True)


def remember(txn: Transaction, job: StagingJob, rows: int, done: StagingResult) -> None:
    """Record that a job is done, in the transaction that does it."""
    if job.batch is not None:
        txn.execute(
            "UPDATE synrepl._job_batches SET batch = %s, at = now() WHERE stream = %s AND job = %s",
            (job.batch, job.stream, job.job),
        )
    elif job.key is not None:
        # Only the first and the last token: a million of them would be a row of eight megabytes.
        ends = [done.first, done.last] if done.rows else []
        answer = AppendResult(ends, job.writer)
        idempotency.remember(txn, job.stream, job.key, _digest(rows), answer)


def clean_up(txn: Transaction, stream: str, job: str) -> None:
    """Remove the staged rows of a job, and abandoned rows of others.

    Rows of an attempt that still runs elsewhere are left for the next call.
    """
    txn.execute(
        "DELETE FROM synrepl._staging WHERE stream = %s"
        " AND (job = %s OR at < now() - make_interval(secs => %s)) RETURNING attempt",
        (stream, job, LEFTOVERS_S),
    )
    attempts = [row[0] for row in txn.fetchall()]
    if attempts and not _truncate_if_unused(txn, stream):
        txn.execute(f"DELETE FROM {staged_table(stream)} WHERE attempt = ANY(%s)", (attempts,))


@contextmanager
def naming_refusals(stream: str, writer: str) -> Iterator[None]:
    """Translate the refusals of ``synrepl.take_place``."""
    where = {"stream": stream, "writer": writer}
    try:
        yield
    except RaisedByDatabase as error:
        if error.code == _TAKEN:
            raise WriterTaken(**where, holder=error.detail) from error
        if error.code == _DRAINED:
            raise Drained(**where) from error
        if error.code == _REMOVED:
            raise WriterRemoved(**where) from error
        if error.code == _NO_WRITER:
            raise StreamNotMade(stream=stream) from error
        raise


def check_writer_available(txn: Transaction, stream: str, writer: str) -> None:
    """Check that a job can write as this writer now; register the writer on first use.

    :raises WriterTaken:
    :raises Drained:
    :raises WriterRemoved:
    :raises StreamNotMade:
    """
    writers.register(txn, stream, writer)
    with naming_refusals(stream, writer):
        txn.execute("SELECT synrepl.take_place(%s, %s)", (stream, writer))


def kinds(txn: Transaction, stream: str) -> tuple[str, ...] | None:
    """The kinds that a stream's table accepts; None for a stream without kinds."""
    txn.execute(
        "SELECT array_agg(kind[1]) FROM pg_constraint c,"
        " regexp_matches(obj_description(c.oid, 'pg_constraint'), '''([^'']+)''', 'g') AS kind"
        " WHERE c.conname = %s AND c.conrelid = %s::regclass",
        (f"_{stream}_kind", f'synrepl."{stream}"'),
    )
    found = txn.fetchone()[0]
    return None if found is None else tuple(found)


def check_count(stream: str, found: int, rows: int) -> None:
    """Check that all staged rows are there.

    :raises StagedRowsLost:
    """
    if found != rows:
        raise StagedRowsLost(found=found, rows=rows, stream=stream)


def _copy_staged(
    txn: Transaction,
    job: StagingJob,
    attempts: Sequence[StagedAttempt],
    rows: int,
    cells: Sequence[str],
) -> StagingResult:
    with naming_refusals(job.stream, job.writer):
        txn.execute("SELECT * FROM synrepl.take_place(%s, %s)", (job.stream, job.writer))
        number, epoch, sequence, floor = txn.fetchone()
        names = "".join(f', "{name}"' for name in cells)
        picked = "".join(f', s."{staged_column(name)}"' for name in cells)
        bases, base = [], 0
        for attempt in attempts:
            bases.append(base)
            base += attempt.rows
        # IDs are assigned in the order of the rows.
        txn.execute(
            f'WITH written AS (INSERT INTO synrepl."{job.stream}" (stream_id, row_no, writer{names})'
            f" SELECT taken.id, 0, %s{picked}"
            f" FROM unnest(%s::bigint[], %s::bigint[]) AS part(attempt, base)"
            f" JOIN {staged_table(job.stream)} AS s USING (attempt)"
            "  JOIN synrepl.reserve(%s, %s, true, %s::regclass, %s, %s)"
            "    WITH ORDINALITY AS taken(id, n) ON taken.n = part.base + s.ordinal + 1"
            " ORDER BY taken.n"
            " RETURNING abs(stream_id) AS token)"
            " SELECT count(*), coalesce(min(token), 0), coalesce(max(token), 0) FROM written",
            (
                job.writer,
                [attempt.attempt for attempt in attempts],
                bases,
                number,
                epoch,
                sequence,
                rows,
                floor,
            ),
        )
        found, first, last = txn.fetchone()
    check_count(job.stream, int(found), rows)
    return StagingResult(rows, int(first), int(last))


def _quarantine(txn: Transaction, job: StagingJob, attempts: Sequence[StagedAttempt]) -> None:
    txn.execute(
        "INSERT INTO synrepl._quarantine (stream, writer, job, reason, row)"
        " SELECT %s, %s, %s, bad.reason, bad.row"
        " FROM unnest(%s) WITH ORDINALITY AS taken (attempt, n)"
        " JOIN synrepl._staged_bad AS bad USING (attempt) ORDER BY taken.n, bad.ctid",
        (job.stream, job.writer, job.job, [attempt.attempt for attempt in attempts]),
    )
    check_count(job.stream, txn.rowcount, sum(attempt.bad for attempt in attempts))


def _lacking(txn: Transaction, stream: str, cells: Iterable[Column]) -> list[Column]:
    txn.execute(
        "SELECT attname FROM pg_attribute"
        " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
        (staged_table(stream),),
    )
    present = {row[0] for row in txn.fetchall()}
    return [column for column in cells if staged_column(column.name) not in present | set(HEAD)]


def _truncate_if_unused(txn: Transaction, stream: str) -> bool:
    """Truncate the staging table if no other job has rows there, which is faster than DELETE."""
    txn.execute("SAVEPOINT emptying")
    try:
        # A transaction that is staging locks the table, too; do not wait for it.
        txn.execute(f"LOCK TABLE {staged_table(stream)} IN ACCESS EXCLUSIVE MODE NOWAIT")
    except LockNotAvailable:
        txn.execute("ROLLBACK TO SAVEPOINT emptying")
        return False
    if value(txn, "SELECT EXISTS (SELECT FROM synrepl._staging WHERE stream = %s)", (stream,)):
        txn.execute("ROLLBACK TO SAVEPOINT emptying")
        return False
    txn.execute(f"TRUNCATE {staged_table(stream)}")
    return True


def _digest(rows: int) -> bytes:
    """A digest of a job's rows for its idempotency key: only their number, as there may be very many."""
    return hashlib.sha256(f"staged {rows}".encode()).digest()

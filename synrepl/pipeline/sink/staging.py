"""Stages the rows of one task in the database, under an attempt number of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from synrepl.core.errors import ConfigError, Unavailable
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.sink.copy_format import copy_text, quarantine_text
from synrepl.pipeline.sink.options import OnBadRows, SinkOptions
from synrepl.pipeline.sink.target import INSTANCE, SinkTarget
from synrepl.pipeline.sink.validation import validate
from synrepl.storage import incarnations
from synrepl.storage.database import QueryFailed, Transaction
from synrepl.storage.staging import staging as staged
from synrepl.storage.staging.staging import StagedAttempt

#: Maximum size of a task's invalid rows in memory, in bytes; beyond it they go to a file.
_BAD_BYTES = 4 << 20

#: Spark's local property with the ID of the streaming query, which is stored in the checkpoint.
_QUERY_ID = "sql.streaming.queryId"


class StagingInterrupted(Unavailable):
    """the connection to the database was lost while a task staged its rows; they are gone from here, so the task has to run again"""


class NoQuery(ConfigError):
    """Spark does not tell which streaming query writes to stream {stream!r}, so that a batch it repeats could not be recognised; nothing was written"""


@dataclass(frozen=True, slots=True)
class StagedTask(WriterCommitMessage):
    """A task's report to the driver.

    :ivar query: the ID of the streaming query; "" in a batch job
    :ivar reason: why the first invalid row does not fit; "" without any
    """

    partition: int
    staged: StagedAttempt
    query: str
    reason: str


def stage_rows(
    options: SinkOptions, target: SinkTarget, job: str | None, batches: Iterator[pa.RecordBatch]
) -> StagedTask:
    """Stage the rows of a task in one transaction, with bounded memory.

    :param job: the ID of the job; None to use that of the streaming query
    :raises NoQuery: :raises StagingInterrupted: :raises DatabaseAway: :raises BadValue:
    :raises NotConfirmed:
    """
    context = TaskContext.get()
    query = (context and context.getLocalProperty(_QUERY_ID)) or ""
    job = job or query
    if not job:
        raise NoQuery(stream=target.stream)
    attempt = secrets.randbits(63)
    with (
        BlockingDatabase(options.database, INSTANCE, options.patience_s) as database,
        SpooledTemporaryFile(max_size=_BAD_BYTES) as bad,
    ):
        rows = _Rows(target, attempt, batches, options.on_bad_rows, bad)
        columns = [column.name for column in target.columns]

        def work(txn: Transaction) -> StagedAttempt:
            rows.begin()
            return staged.stage(txn, target.stream, job, attempt, columns, rows.good(), rows.bad())

        # Wait for an unreachable database now, while no rows have been read.
        database.run("begin to stage", incarnations.confirmed, read_only=True)
        try:
            done = database.run("stage rows", work)
        except QueryFailed:
            # psycopg2 reports only that reading the rows failed, not the exception.
            if rows.failure is not None:
                raise rows.failure from None
            raise
    partition = context.partitionId() if context else 0
    return StagedTask(
        partition, StagedAttempt(attempt, done.rows, rows.bad_rows), query, rows.reason
    )


class _Rows:
    """The rows of a task. They can be read only once.

    :ivar bad_rows: the number of invalid rows read so far
    :ivar reason: why the first of them does not fit
    :ivar failure: the exception that reading them raised
    """

    def __init__(
        self,
        target: SinkTarget,
        attempt: int,
        batches: Iterator[pa.RecordBatch],
        on_bad_rows: OnBadRows,
        kept: SpooledTemporaryFile[bytes],
    ) -> None:
        self._target = target
        self._attempt = attempt
        self._batches = batches
        self._keep_bad = on_bad_rows is OnBadRows.QUARANTINE
        self._kept = kept
        self._begun = False
        self.bad_rows = 0
        self.reason = ""
        self.failure: Exception | None = None

    def begin(self) -> None:
        """Begin reading.

        :raises StagingInterrupted: rows have been read before
        """
        if self._begun:
            raise StagingInterrupted()
        self._begun = True

    def good(self) -> Iterator[bytes]:
        """The valid rows, for COPY; the others are held for :meth:`bad`."""
        try:
            yield from self._sorted_out()
        except Exception as error:
            self.failure = error
            raise

    def bad(self) -> Iterator[bytes]:
        """The invalid rows, for COPY."""
        self._kept.seek(0)
        yield from self._kept

    def _sorted_out(self) -> Iterator[bytes]:
        ordinal = 0
        for batch in self._batches:
            fitted = validate(batch, self._target)
            yield from copy_text(fitted.good, self._attempt, ordinal)
            ordinal += fitted.good.num_rows
            if fitted.reasons:
                self.reason = self.reason or fitted.reasons[0]
                self.bad_rows += len(fitted.reasons)
                if self._keep_bad:
                    self._kept.writelines(
                        quarantine_text(fitted.bad, self._attempt, fitted.reasons)
                    )

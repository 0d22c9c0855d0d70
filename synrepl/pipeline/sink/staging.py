"""What a task does: sort its rows out and stage them, under a number of its own."""

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
from synrepl.storage import staging as staged
from synrepl.storage.database import QueryFailed, Transaction
from synrepl.storage.staging import StagedAttempt

#: Bad rows of a task that are kept in memory, in bytes; more of them are kept in a file.
_BAD_BYTES = 4 << 20

#: Where Spark tells a task which query it works for; the ID is kept in the checkpoint.
_QUERY_ID = "sql.streaming.queryId"


class StagingInterrupted(Unavailable):
    """the connection to the database was lost while a task staged its rows; they are gone from here, so the task has to run again"""


class NoQuery(ConfigError):
    """Spark does not tell which streaming query writes to stream {stream!r}, so that a batch it repeats could not be recognised; nothing was written"""


@dataclass(frozen=True, slots=True)
class StagedTask(WriterCommitMessage):
    """What a task tells the driver.

    :ivar query: the streaming query it works for; "" in a batch job
    :ivar reason: about the first row that does not fit
    """

    partition: int
    staged: StagedAttempt
    query: str
    reason: str


def stage_rows(
    options: SinkOptions, target: SinkTarget, job: str | None, batches: Iterator[pa.RecordBatch]
) -> StagedTask:
    """Stage what a task was given, in one transaction; memory is bounded whatever its size.

    :param job: None for the streaming query that the task works for
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

        # A database that is away is waited for now, while nothing has been read.
        database.run("begin to stage", incarnations.confirmed, read_only=True)
        try:
            done = database.run("stage rows", work)
        except QueryFailed:
            # The driver tells of what reading the rows raised only that there was something.
            if rows.failure is not None:
                raise rows.failure from None
            raise
    partition = context.partitionId() if context else 0
    return StagedTask(
        partition, StagedAttempt(attempt, done.rows, rows.bad_rows), query, rows.reason
    )


class _Rows:
    """The rows of a task, which can be read once.

    :ivar bad_rows: how many there are that do not fit, when all have been read
    :ivar failure: what reading them raised
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
        """:raises StagingInterrupted: they have been read before, at least some of them"""
        if self._begun:
            raise StagingInterrupted()
        self._begun = True

    def good(self) -> Iterator[bytes]:
        """The rows that fit, for COPY; the others are kept for :meth:`bad`."""
        try:
            yield from self._sorted_out()
        except Exception as error:
            self.failure = error
            raise

    def bad(self) -> Iterator[bytes]:
        """The rows that do not fit, for COPY."""
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

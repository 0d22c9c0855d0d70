"""Commits a job on the driver when all its tasks have staged their rows, or aborts it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress

from synrepl.core.errors import Refused, SynreplError
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.sink.options import OnBadRows, SinkOptions
from synrepl.pipeline.sink.staging import StagedTask
from synrepl.pipeline.sink.target import INSTANCE, SinkTarget
from synrepl.storage.database import Transaction, UniqueViolation
from synrepl.storage.staging import staging as staged
from synrepl.storage.staging import with_ids as preserved
from synrepl.storage.staging.staging import StagedAttempt, StagingJob, StagingResult

_log = logging.getLogger(__name__)

#: Attempts of :func:`commit_job`. It has to try again if another driver commits the same job at the
#: same time, or if the sequence was found behind the table.
_ATTEMPTS = 3


class RowsRefused(Refused):
    """{bad} of {rows} rows do not fit stream {stream!r}, the first of them because {reason}; nothing was written: correct them, or let them go to quarantine (on_bad_rows=quarantine)"""


class RowsQuarantined(UserWarning):
    """Rows did not fit their stream and were put into ``synrepl._quarantine``."""


def commit_job(
    options: SinkOptions, target: SinkTarget, job: StagingJob, tasks: Sequence[StagedTask]
) -> StagingResult:
    """Append the staged rows in one transaction; append nothing if the job was committed before.

    If rows keep their IDs, the sequence is advanced in a second transaction. Can be called again
    after any failure.

    :raises RowsRefused: :raises StagedRowsLost: :raises KeyReused: :raises DatabaseAway:
    :raises WriterTaken: :raises Drained: :raises WriterRemoved:
    :raises PositionsTaken: :raises BadReplay: :raises StreamBusy:
    """
    ordered = sorted(tasks, key=lambda task: task.partition)
    attempts = [task.staged for task in ordered]
    _check_bad(options, job, ordered)
    with BlockingDatabase(options.database, INSTANCE, options.patience_s) as database:
        if options.preserve:
            database.run(
                "register writers",
                lambda txn: preserved.register_writers(txn, job.stream, attempts),
            )
        done = _append(database, options, target, job, attempts)
        if options.preserve:
            # Also if the job was committed before: that process may have died right here.
            database.run("move the sequence", lambda txn: preserved.move_sequence(txn, job.stream))
        _clean_up(database, job.stream, job.job)
    if done.bad:
        reason = next(task.reason for task in ordered if task.reason)
        _report_quarantined(job, done.bad, done.rows + done.bad, reason)
    return done


def abort_job(options: SinkOptions, stream: str, job: str) -> None:
    """Remove the rows that the tasks of a job have staged; rows that remain are removed after a day."""
    with (
        suppress(SynreplError),
        BlockingDatabase(options.database, INSTANCE, options.patience_s) as database,
    ):
        _clean_up(database, stream, job)


def _append(
    database: BlockingDatabase,
    options: SinkOptions,
    target: SinkTarget,
    job: StagingJob,
    attempts: Sequence[StagedAttempt],
) -> StagingResult:
    append = preserved.append_with_ids if options.preserve else staged.append_staged

    def work(txn: Transaction) -> StagingResult:
        return append(txn, job, attempts, target.cells)

    for _ in range(1, _ATTEMPTS):
        with suppress(UniqueViolation):
            return database.run("append staged rows", work)
    return database.run("append staged rows", work)


def _check_bad(options: SinkOptions, job: StagingJob, tasks: Iterable[StagedTask]) -> None:
    bad = [task for task in tasks if task.staged.bad]
    if bad and options.on_bad_rows is OnBadRows.REFUSE:
        raise RowsRefused(
            bad=sum(task.staged.bad for task in bad),
            rows=sum(task.staged.bad + task.staged.rows for task in tasks),
            stream=job.stream,
            reason=bad[0].reason,
        )


def _clean_up(database: BlockingDatabase, stream: str, job: str) -> None:
    try:
        database.run("clean up", lambda txn: staged.clean_up(txn, stream, job))
    except SynreplError as error:  # the rows are appended, and the staged ones do no harm
        _log.warning(
            "the rows staged for stream %s were not removed and stay for up to a day: %s",
            stream,
            error,
        )


def _report_quarantined(job: StagingJob, bad: int, rows: int, reason: str) -> None:
    words = (
        f"{bad} of {rows} rows did not fit stream {job.stream!r} and are in synrepl._quarantine"
        f" (job {job.job!r}); the first: {reason}"
    )
    _log.warning("%s", words)
    warnings.warn(words, RowsQuarantined, stacklevel=2)

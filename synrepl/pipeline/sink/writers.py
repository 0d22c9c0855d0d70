"""Spark's two writers: for a batch job, and for the micro-batches of a streaming query."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from synrepl.core.errors import ConfigError
from synrepl.pipeline.options import BadOption
from synrepl.pipeline.sink.commit import abort_job, commit_job
from synrepl.pipeline.sink.options import SinkOptions, parse_sink_options
from synrepl.pipeline.sink.staging import StagedTask, stage_rows
from synrepl.pipeline.sink.target import SinkTarget, resolve_target
from synrepl.pipeline.source.named_first import named_first
from synrepl.storage.staging.staging import StagingJob

#: Prefix that separates the idempotency keys of jobs from those of other requests.
_KEYS = "spark/"


class OnlyAppends(ConfigError):
    """facts are only ever appended to stream {stream!r}; use mode("append"), and outputMode("append") for a streaming query"""


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """Create the writer of one ``save()``.

    :param schema: of the DataFrame
    :raises OnlyAppends: and the errors of :func:`.parse_sink_options` and :func:`.resolve_target`
    """
    parsed = _parsed(options, overwrite)
    return BatchWriter(parsed, resolve_target(parsed, schema))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Create the writer for the micro-batches of a streaming query.

    :param schema: of the DataFrame
    :raises OnlyAppends: and the errors of :func:`.parse_sink_options` and :func:`.resolve_target`
    """
    parsed = _parsed(options, overwrite)
    if parsed.key is not None:
        raise BadOption(
            end="sink",
            option="key",
            value=parsed.key,
            wanted="left out: each batch of a streaming query is recognised by its number",
        )
    return MicroBatchWriter(parsed, resolve_target(parsed, schema))


class BatchWriter(DataSourceArrowWriter):
    """Appends the rows of a batch job. It is created on the driver and pickled for the tasks."""

    def __init__(self, options: SinkOptions, target: SinkTarget) -> None:
        self._options = options
        self._target = target
        self._job = str(uuid.uuid4())

    @named_first
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        """Stage the rows of one task."""
        return stage_rows(self._options, self._target, self._job, iterator)

    @named_first
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Append the rows that all tasks staged."""
        # Its own key shows whether a commit whose answer was lost has happened.
        key = _KEYS + (self._options.key or self._job)
        job = StagingJob(self._target.stream, self._options.writer, self._job, key=key)
        commit_job(self._options, self._target, job, _done(messages))

    @named_first
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the rows that the tasks staged."""
        abort_job(self._options, self._target.stream, self._job)


class MicroBatchWriter(DataSourceStreamArrowWriter):
    """Appends the micro-batches of a streaming query. Spark creates objects as it needs them."""

    def __init__(self, options: SinkOptions, target: SinkTarget) -> None:
        self._options = options
        self._target = target

    @named_first
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        """Stage the rows of one task."""
        return stage_rows(self._options, self._target, None, iterator)

    @named_first
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Append the rows that the tasks of a batch staged, unless an earlier run of the query did."""
        tasks = _done(messages)
        if not tasks:
            return
        job = StagingJob(self._target.stream, self._options.writer, tasks[0].query, batch=batchId)
        commit_job(self._options, self._target, job, tasks)

    @named_first
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the rows that the tasks of a batch staged."""
        for task in _done(messages)[:1]:
            abort_job(self._options, self._target.stream, task.query)


def _parsed(options: Mapping[str, str], overwrite: bool) -> SinkOptions:
    parsed = parse_sink_options(options)
    if overwrite:
        raise OnlyAppends(stream=parsed.stream)
    return parsed


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[StagedTask]:
    return [message for message in messages if isinstance(message, StagedTask)]

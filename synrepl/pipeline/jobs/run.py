"""Runs a job, or explains how Spark would run it."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from synrepl.core.errors import InputError
from synrepl.pipeline.jobs.job import LakeJob
from synrepl.pipeline.jobs.longform import longform
from synrepl.pipeline.lake.lake import Lake


class OtherSchema(InputError):
    """job {job!r} gives the columns {found}, and declares {declared}; make its transform and its schema agree"""


def run_job(spark: SparkSession, lake: Lake, job: LakeJob) -> DataFrame:
    """The result of a job as a DataFrame, which is computed when its rows are requested.

    Use it within :meth:`.Lake.read_lock`.

    :raises NothingToRead: none of the job's streams is in the lake
    :raises OtherSchema: the result differs from the declared schema
    :raises LakeFailed: a table cannot be read
    """
    answer = job.transform(longform(spark, lake, job.input))
    found, declared = _columns(answer.schema), _columns(job.schema)
    if found != declared:
        raise OtherSchema(job=job.name, found=_describe(found), declared=_describe(declared))
    return answer


def explain_job(spark: SparkSession, lake: Lake, job: LakeJob) -> str:
    """Spark's execution plan of a job, as text for people.

    :raises: the errors of :func:`run_job`
    """
    # Neither kind of session has a call that returns the plan as text.
    output = io.StringIO()
    with redirect_stdout(output):
        run_job(spark, lake, job).explain(mode="formatted")
    return output.getvalue().strip()


def _columns(schema: t.StructType) -> list[tuple[str, str]]:
    """Names and types. Nullability is not compared, because Spark guesses it."""
    return [(field.name, field.dataType.simpleString()) for field in schema]


def _describe(columns: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in columns)

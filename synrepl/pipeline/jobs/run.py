"""A job's answer, or how Spark would find it."""

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
    """A job's answer, which is found when it is asked for rows.

    To be used within :meth:`.Lake.read_lock`, until all rows are taken.

    :raises NothingToRead: none of the job's streams is in the lake
    :raises OtherSchema: the job gives what it does not declare
    :raises LakeFailed: a table cannot be read
    """
    answer = job.transform(longform(spark, lake, job.input))
    found, declared = _columns(answer.schema), _columns(job.schema)
    if found != declared:
        raise OtherSchema(job=job.name, found=_told(found), declared=_told(declared))
    return answer


def explain_job(spark: SparkSession, lake: Lake, job: LakeJob) -> str:
    """How Spark would find the answer: its plan, for people.

    :raises: as :func:`run` does
    """
    # Spark has no call that gives it as text on a session of either kind.
    output = io.StringIO()
    with redirect_stdout(output):
        run_job(spark, lake, job).explain(mode="formatted")
    return output.getvalue().strip()


def _columns(schema: t.StructType) -> list[tuple[str, str]]:
    """Names and types; whether a column may be null is Spark's guess."""
    return [(field.name, field.dataType.simpleString()) for field in schema]


def _told(columns: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in columns)

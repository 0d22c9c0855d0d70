"""The tables of a lake by name, for SQL and notebooks.

Where a session of Spark has a connector for Delta tables, they are registered in its catalog (a Hive metastore, Unity
Catalog, Glue): statements create external tables at the lake's own place, so nothing is copied, and what is landed later
is seen. Any other session gets temporary views of the present rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.sql import SparkSession

from synrepl.core.errors import InputError
from synrepl.pipeline.lake.dataframe import hadoop_url, table_dataframe
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.storage import LakePath

#: Parts of the name of a schema: at most a catalog and a schema.
_SCHEMA = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?")


class BadSchemaName(InputError):
    """{name!r} is no name of a schema: want SCHEMA or CATALOG.SCHEMA, of letters, digits and underscores"""


def register_statements(lake: Lake, schema: str) -> list[str]:
    """SQL that registers the tables of a lake in a catalog; it can be run again when streams have come.

    Spark runs them if it has a connector for Delta tables. Columns are not in them: the tables have their own.

    :param schema: created if it does not exist: ``SCHEMA`` or ``CATALOG.SCHEMA``
    :raises BadSchemaName:
    """
    if not _SCHEMA.fullmatch(schema):
        raise BadSchemaName(name=schema[:100])
    place = ".".join(f"`{part}`" for part in schema.split("."))
    return [
        f"CREATE SCHEMA IF NOT EXISTS {place}",
        *(
            f"CREATE TABLE IF NOT EXISTS {place}.`{stream}` USING DELTA"
            f" LOCATION {_literal(hadoop_url(lake.table(stream).path))}"
            for stream in lake.streams
        ),
    ]


def create_views(
    spark: SparkSession, path: str | LakePath, streams: Sequence[str] | None = None
) -> list[str]:
    """Create temporary views of the present rows of a lake, each named after its stream; their names.

    A view is of the files that there are now. They stay for the lake's retention, and go at once in an erasure: then
    create the views again, as to see rows that have been landed since.

    :param streams: None: all
    :raises NotALake: :raises NotInTheLake:
    """
    lake = Lake(path)
    names = lake.streams if streams is None else list(streams)
    for stream in names:
        table_dataframe(spark, lake.table(stream)).createOrReplaceTempView(stream)
    return names


def _literal(url: str) -> str:
    """A string literal of Spark's SQL."""
    escaped = url.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"

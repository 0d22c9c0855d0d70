"""A Spark session that is opened when it is needed first, for work that may do without one."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

#: Returns the session, the same each time.
SessionOnDemand = Callable[[], SparkSession]


def on_demand(spark: SparkSession | SessionOnDemand) -> SessionOnDemand:
    """A function that returns the session, which may be such a function already."""
    if callable(spark):
        return spark
    return lambda: spark

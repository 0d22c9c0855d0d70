"""A Spark session that is opened when it is needed first, for work that may do without one."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

#: Number of rows up to which work is done without Spark: some tenths of a second, where Spark takes seconds to start.
ROWS_HERE = 200_000


class SessionOnDemand:
    """Returns a session, the same each time, which is opened by the first call.

    :param session: opens the session, or returns the one that is open
    :param rows_here: the number of rows up to which work is done in this process instead
    """

    def __init__(self, session: Callable[[], SparkSession], rows_here: int = ROWS_HERE) -> None:
        self._session = session
        self.rows_here = rows_here

    def __call__(self) -> SparkSession:
        return self._session()

    def is_needed(self, rows: int) -> bool:
        """Whether there are too many rows to do the work in this process.

        :param rows: about how many there are
        """
        return rows > self.rows_here


def on_demand(spark: SparkSession | SessionOnDemand) -> SessionOnDemand:
    """The session on demand; an open one is used for all work."""
    if isinstance(spark, SessionOnDemand):
        return spark
    return SessionOnDemand(lambda: spark, rows_here=-1)

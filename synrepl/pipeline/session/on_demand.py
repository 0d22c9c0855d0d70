"""Opens a Spark session when it is needed first, for commands that may do without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from pyspark.sql import SparkSession

from synrepl.pipeline.lake.on_demand import ROWS_HERE, SessionOnDemand
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import named_session


@contextmanager
def session_on_demand(
    options: SessionOptions, rows_here: int = ROWS_HERE
) -> Iterator[SessionOnDemand]:
    """A session that is opened when it is called for first, see :func:`.named_session`.

    :param rows_here: see :class:`.SessionOnDemand`
    """
    with ExitStack() as stack:
        opened: list[SparkSession] = []

        def session() -> SparkSession:
            if not opened:
                opened.append(stack.enter_context(named_session(options)))
            return opened[0]

        yield SessionOnDemand(session, rows_here)

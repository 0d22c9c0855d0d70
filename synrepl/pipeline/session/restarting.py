"""A Spark session for a command that runs for long: opened again after Spark has died.

A cluster runs a lost task again on another executor. A session on one machine does not, and nothing
replaces a driver's JVM. Then the work that was under way is lost, and the next call begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Generic, NoReturn, Self, TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from synrepl.core.errors import SynreplError, Unavailable
from synrepl.pipeline.lake.on_demand import ROWS_HERE, SessionOnDemand
from synrepl.pipeline.lake.spark_tasks import TaskFailed
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.requirements import MasterUnreachable
from synrepl.pipeline.session.session import (
    SparkFailed,
    SparkNotStarted,
    interrupts_kept,
    named_error,
    named_session,
)

T = TypeVar("T")
R = TypeVar("R")

#: How often in a row Spark may be lost. What fails each time will not pass.
MAX_LOSSES = 5


class SparkLost(Unavailable):
    """Spark was lost: {reason}"""


class RestartingSession(Generic[T]):
    """A session, and what uses it; a context manager. The session is opened when it is first needed.

    :param make: makes the object that uses a session, for each session anew
    :param rows_here: see :class:`.SessionOnDemand`
    """

    def __init__(
        self,
        options: SessionOptions,
        make: Callable[[SessionOnDemand], T],
        rows_here: int = ROWS_HERE,
    ) -> None:
        self._options = options
        self._make = make
        self._rows_here = rows_here
        self._stack = ExitStack()
        self._opened: list[SparkSession] = []  # one at most
        self._made: list[T] = []  # one at most
        self._losses = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._close()

    def call(self, work: Callable[[T], R]) -> R:
        """Call ``work`` with the object that uses the session.

        :raises SparkLost: a worker, an executor or the JVM died; the next call opens a new session
        :raises TaskFailed: :raises SparkFailed: and errors of the start, if that has happened
            :data:`MAX_LOSSES` times in a row
        :raises: what ``work`` raises
        """
        try:
            with interrupts_kept():
                result = work(self._current())
        except (TaskFailed, SparkFailed, SparkNotStarted, MasterUnreachable) as error:
            self._lost(error)
        except (PySparkException, Py4JError) as error:
            named = named_error(error)
            if not isinstance(named, SparkFailed):
                raise named from None
            self._lost(named)
        else:
            self._losses = 0
            return result

    def _lost(self, error: SynreplError) -> NoReturn:
        self._losses += 1
        self._close()
        if self._losses >= MAX_LOSSES:
            raise error
        raise SparkLost(reason=error.facts.get("reason", error)) from None

    def _current(self) -> T:
        if not self._made:
            self._made.append(self._make(SessionOnDemand(self._session, self._rows_here)))
        return self._made[0]

    def _session(self) -> SparkSession:
        if not self._opened:
            self._opened.append(self._stack.enter_context(named_session(self._options)))
        return self._opened[0]

    def _close(self) -> None:
        self._made.clear()
        self._opened.clear()
        self._stack.close()

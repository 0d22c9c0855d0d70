"""Base class of the master and the worker process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Generic, TypeVar

from twisted.logger import Logger

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.errors import SynreplError

#: The parts of a running process.
R = TypeVar("R")


class DaemonProcess(Generic[R]):
    """Starts a process, and stops its parts in the reverse order."""

    log = Logger()

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._scheduler = TwistedScheduler(reactor)
        self._started_at = self._scheduler.seconds()
        self._stops = AsyncExitStack()
        self._has_started = False

    async def start(self) -> R:
        """Start the process, waiting for the database whenever it is away.

        :raises DatabaseRefused: the database refuses, and waiting does not help
        :raises SynreplError: the process cannot run with this configuration
        """
        running = await self.begin(self._stops)
        self._has_started = True
        return running

    async def begin(self, stops: AsyncExitStack) -> R:
        """Start the parts of the process.

        :param stops: gets a callback for each part that has to be stopped
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop the parts that have started, and end a start that still waits."""
        if not self._has_started:
            self._scheduler.stop()
        await self._stops.aclose()

    async def close(self, what: str, step: Callable[[], Awaitable[object]]) -> None:
        """Run a step of the stop that needs the database; an error is logged.

        :param what: the log message if it fails
        """
        try:
            await step()
        except SynreplError as error:
            self.log.warn("{what}: {error}", what=what, error=error)

"""The life of a process of a daemon, from start to stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Generic, TypeVar

from twisted.logger import Logger

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.errors import SynreplError

#: What a process consists of once it runs.
R = TypeVar("R")


class DaemonProcess(Generic[R]):
    """Starts and stops a process; what has started is stopped in the reverse order."""

    log = Logger()

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._scheduler = TwistedScheduler(reactor)
        self._started_at = self._scheduler.seconds()
        self._stops = AsyncExitStack()
        self._has_started = False

    async def start(self) -> R:
        """Start; a database that is away, from the beginning or from any step on, is waited for.

        :raises DatabaseRefused: waiting for the database does not help
        :raises SynreplError: the process cannot run like this
        """
        running = await self.begin(self._stops)
        self._has_started = True
        return running

    async def begin(self, stops: AsyncExitStack) -> R:
        """Start what the process consists of.

        :param stops: gets a callback for each part that has to be stopped
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop what has started; a start that still waits for something ends."""
        if not self._has_started:
            self._scheduler.stop()
        await self._stops.aclose()

    async def close(self, what: str, step: Callable[[], Awaitable[object]]) -> None:
        """A step of the stop that needs the database; what goes wrong is logged.

        :param what: the log says this when it fails
        """
        try:
            await step()
        except SynreplError as error:
            self.log.warn("{what}: {error}", what=what, error=error)

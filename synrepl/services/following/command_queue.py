"""Delivers commands to handlers: in order, bounded, and to each handler at its own pace."""

from __future__ import annotations

from collections.abc import Mapping

from synrepl.core.backlog import Backlog
from synrepl.core.clock import Scheduler
from synrepl.core.errors import Unavailable
from synrepl.core.log import Logger
from synrepl.core.slices import Slices
from synrepl.services.following.failures import HandlerFailures
from synrepl.services.handlers import Handler
from synrepl.wire.commands import Command

#: Maximum number of commands in the queue of one handler. At half of it, clients that send
#: commands are no longer read; at the maximum, commands from other sources are dropped.
MAX_WAITING = 10_000

#: Cost of calling a handler, in units of :class:`Slices`.
_COST = 2


class HandlerBusy(Unavailable):
    """{limit} commands wait for on_command of {handler}; more are dropped until it has caught up: make it faster, or let it run long work in the background"""


class CommandQueue:
    """Calls ``on_command`` of each handler, one command at a time.

    :param slices: budget for the calls
    :param handlers: by name; those that do not override ``on_command`` are skipped
    :param failures: where exceptions of handlers are counted and logged
    :ivar dropped: number of commands dropped because a handler was too slow
    """

    def __init__(
        self,
        scheduler: Scheduler,
        slices: Slices,
        handlers: Mapping[str, Handler],
        failures: HandlerFailures,
        log: Logger,
    ) -> None:
        self._queues = [
            _Queue(scheduler, slices, name, handler, failures, log)
            for name, handler in handlers.items()
            if type(handler).on_command is not Handler.on_command
        ]

    def hold(self) -> None:
        """Stop calling handlers, until all of them have started."""
        for queue in self._queues:
            queue.is_held = True

    def release(self) -> None:
        """Resume calling handlers, starting with the queued commands."""
        for queue in self._queues:
            queue.is_held = False
            queue.start()

    @property
    def waiting(self) -> int:
        """Number of commands in all queues."""
        return sum(len(queue.backlog) for queue in self._queues)

    @property
    def dropped(self) -> int:
        """Number of commands dropped because a handler was too slow."""
        return sum(queue.dropped for queue in self._queues)

    def put(self, source: str, command: Command) -> None:
        """Queue a command for every handler.

        :param source: name of the connection it came from
        """
        for queue in self._queues:
            queue.put(source, command)

    @property
    def full(self) -> bool:
        """True while the queue of any handler is half full."""
        return any(queue.backlog.full for queue in self._queues)

    async def room(self) -> None:
        """Wait until no queue is half full."""
        for queue in self._queues:
            await queue.backlog.room()


class _Queue:
    """The queue of one handler."""

    def __init__(
        self,
        scheduler: Scheduler,
        slices: Slices,
        name: str,
        handler: Handler,
        failures: HandlerFailures,
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._slices = slices
        self._name = name
        self._handler = handler
        self._failures = failures
        self._log = log
        self._is_running = False
        self._is_dropping = False
        self.backlog: Backlog[tuple[str, Command]] = Backlog(
            scheduler, MAX_WAITING, MAX_WAITING // 2
        )
        self.dropped = 0
        self.is_held = False

    def put(self, source: str, command: Command) -> None:
        if not self.backlog.put((source, command)):
            self.dropped += 1
            if not self._is_dropping:
                self._is_dropping = True
                error = HandlerBusy(limit=MAX_WAITING, handler=self._name)
                self._log.warn("{error}", error=error)
        else:
            self.start()

    def start(self) -> None:
        """Start calling the handler, if commands are queued."""
        if not self._is_running and not self.is_held and len(self.backlog):
            self._is_running = True
            self._scheduler.spawn("hand on commands", self._run())

    async def _run(self) -> None:
        while len(self.backlog):
            await self._slices.step(_COST)
            source, command = self.backlog.take()
            try:
                await self._handler.on_command(source, command)
            except Exception as error:  # a user's handler may raise anything
                sentence = f"handler {self._name} failed at command {command.verb}: {error!r}"
                self._failures.log(self._name, sentence, error)
        self._is_running = self._is_dropping = False

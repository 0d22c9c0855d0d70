"""Runs a master or worker as a Twisted service, or as a program in the foreground.

The service manager is notified by the ``sd_notify`` protocol of systemd: one datagram per message
on the socket named by ``NOTIFY_SOCKET``; see ``sd_notify(3)`` and ``sd_watchdog_enabled(3)``.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python import usage
from twisted.python.failure import Failure

from synrepl.core.errors import SynreplError
from synrepl.core.garbage import collect_after_batches
from synrepl.daemon import logs
from synrepl.daemon.config.config import Config
from synrepl.daemon.exit_codes import EXIT_FAILED, report
from synrepl.daemon.handlers import include_working_directory
from synrepl.daemon.process import DaemonProcess

#: Seconds after which a thread lets others run. Threads verify signatures and judge events; with Python's 5 ms, a request
#: would wait that long at each of its steps while they are busy.
SWITCH_S = 0.001


def notify(state: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Notify the service manager: ``READY=1``, ``WATCHDOG=1``, ``STOPPING=1`` or ``STATUS=…``.

    Errors are ignored: a service manager that does not listen is no reason to stop.

    :returns: whether it was sent; False without a service manager
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address[0] == "@":  # the abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.connect(address)
            sender.send(state.encode())
    except OSError:
        return False
    return True


def watchdog_interval(environ: Mapping[str, str] = os.environ) -> float | None:
    """Interval of ``WATCHDOG=1`` in seconds, half of the watchdog timeout; None without a watchdog."""
    wanted, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not wanted.isdigit() or int(wanted) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(wanted) / 2_000_000


C = TypeVar("C", bound=Config)


class ProcessService(Service):
    """Runs a process from start to stop, and notifies the service manager.

    :ivar exit_code: the exit code for the program; for twistd, see :func:`service_of`
    """

    _log = Logger()

    def __init__(self, reactor: Any, make: Callable[[], DaemonProcess[Any]]) -> None:
        self._reactor = reactor
        self._make = make
        self._stops = AsyncExitStack()
        self.exit_code = 0

    def startService(self) -> None:
        """Start the process; if it cannot run, the program ends with one line that says why."""
        Service.startService(self)
        Deferred.fromCoroutine(self._start()).addErrback(self._failed)

    def stopService(self) -> Deferred[None]:
        """Stop the process, and wait until it has stopped."""
        Service.stopService(self)
        return Deferred.fromCoroutine(self._stop())

    async def _start(self) -> None:
        process = self._make()
        self._stops.push_async_callback(process.stop)
        seconds = watchdog_interval()
        if seconds is not None:
            watchdog = LoopingCall(notify, "WATCHDOG=1")
            watchdog.clock = self._reactor
            watchdog.start(seconds)
            self._stops.callback(watchdog.stop)
        await process.start()
        # Objects created so far are permanent. Traversing them in every full garbage collection
        # would stop the process for up to a tenth of a second.
        collect_after_batches()
        sys.setswitchinterval(SWITCH_S)
        notify("READY=1")

    async def _stop(self) -> None:
        notify("STOPPING=1")
        await self._stops.aclose()

    def _failed(self, failure: Failure) -> None:
        if not self.running:
            return  # stopped before it had started
        if isinstance(failure.value, SynreplError):
            self.exit_code = report(failure.value)
        else:
            self._log.failure("cannot start", failure=failure)
            self.exit_code = EXIT_FAILED
        # twistd starts services before the reactor, which cannot be stopped until it runs.
        self._reactor.callWhenRunning(self._reactor.stop)


class Options(usage.Options):
    """``-c FILE``, repeatable, for twistd."""

    def __init__(self) -> None:
        usage.Options.__init__(self)
        self["config"] = []

    def opt_config(self, path: str) -> None:
        """Configuration file, or directory of *.yaml files; repeatable, later ones win."""
        self["config"].append(Path(path))

    opt_c = opt_config

    def postOptions(self) -> None:
        """Check that there is at least one file."""
        if not self["config"]:
            raise usage.UsageError("-c FILE is needed")


def run(config: Config, make: Callable[[Any], DaemonProcess[Any]]) -> None:
    """Run a process in the foreground until a signal ends it; exits with its code."""
    from twisted.internet import reactor

    logs.begin(config.log, sys.stderr)
    include_working_directory()
    service = ProcessService(reactor, lambda: make(reactor))
    any_reactor: Any = reactor
    any_reactor.callWhenRunning(service.startService)
    any_reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    any_reactor.run()
    if service.exit_code:
        sys.exit(service.exit_code)


def service_of(
    options: Options,
    load: Callable[[Sequence[Path]], C],
    make: Callable[[Any, C], DaemonProcess[Any]],
) -> ProcessService:
    """Make a service for twistd. A configuration that is not acceptable ends the program.

    :param load: reads the configuration
    :param make: makes the process, given the reactor and the configuration
    """
    from twisted.internet import reactor

    try:
        config = load(options["config"])
    except SynreplError as error:
        sys.exit(report(error))
    service = ProcessService(reactor, lambda: make(reactor, config))
    # Registered first, so that it runs after everything that the process registers.
    atexit.register(_exit, service)
    return service


def _exit(service: ProcessService) -> None:
    """Exit with the service's exit code; twistd itself always exits with 0."""
    if service.exit_code:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(service.exit_code)

"""Runs coroutines of sub-commands under the reactor, and blocking calls in threads."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Coroutine
from threading import Thread
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from synrepl.daemon import logs
from synrepl.daemon.config.config import LogConfig

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(main: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """Run ``main(reactor)`` under the reactor; return its result, or raise its exception.

    SIGINT and SIGTERM cancel it, wait for its ``finally`` clauses, and exit silently with 128 plus
    the signal's number; a second signal does not wait. Can be called once per process, because a
    reactor cannot be restarted.
    """
    from twisted.internet import reactor

    any_reactor: Any = reactor
    logs.begin(LogConfig(level="warn"), sys.stderr)
    ended: list[T | Failure] = []
    caught: list[int] = []

    def start() -> None:
        running = Deferred.fromCoroutine(main(any_reactor))
        for number in _SIGNALS:  # in place of the reactor's own
            signal.signal(number, lambda n, _: interrupt(n, running))
        running.addBoth(end)

    def interrupt(number: int, running: Deferred[T]) -> None:
        if caught:
            os._exit(128 + number)
        caught.append(number)
        any_reactor.callFromThread(running.cancel)

    def end(outcome: T | Failure) -> None:
        ended.append(outcome)
        any_reactor.stop()

    any_reactor.callWhenRunning(start)
    any_reactor.run()
    if caught:
        sys.exit(128 + caught[0])
    (outcome,) = ended
    if isinstance(outcome, Failure):
        outcome.raiseException()
    return outcome


def run_in_thread(reactor: Any, job: Callable[[], T]) -> Deferred[T]:
    """Run a blocking job in a daemon thread, which does not keep the process from exiting."""
    result: Deferred[T] = Deferred()

    def work() -> None:
        try:
            value = job()
        except BaseException as error:
            reactor.callFromThread(result.errback, error)
        else:
            reactor.callFromThread(result.callback, value)

    Thread(target=work, daemon=True).start()
    return result

"""Virtual time, and simulated processes that run until they are killed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from heapq import heappop, heappush
from math import ceil
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from synrepl.core.retry import RandomSource

T = TypeVar("T")

#: Start time of every simulation, in seconds since 1970.
EPOCH = 1_000_000_000.0

#: Calls are due at multiples of 4 ms, so that many fall into one turn of the reactor.
TURNS_PER_S = 250


class Call:
    """A scheduled call."""

    __slots__ = ("args", "call", "pending")

    def __init__(self, call: Callable[..., object], args: tuple[object, ...]) -> None:
        self.call = call
        self.args = args
        self.pending = True

    def cancel(self) -> None:
        """Cancel the call."""
        self.pending = False

    def active(self) -> bool:
        """Whether it has neither run nor been cancelled."""
        return self.pending


class VirtualClock:
    """A clock that jumps from one scheduled call to the next; calls due at the same time run in order."""

    def __init__(self) -> None:
        self._now = EPOCH
        self._heap: list[tuple[float, int, Call]] = []
        self._number = 0
        #: Number of calls that have run.
        self.ran = 0

    def seconds(self) -> float:
        """Now."""
        return self._now

    def callLater(self, delay: float, call: Callable[..., object], *args: object) -> Call:
        """Run ``call(*args)`` once, ``delay`` seconds from now."""
        scheduled = Call(call, args)
        self._number += 1
        due = ceil((self._now + delay) * TURNS_PER_S) / TURNS_PER_S if delay else self._now
        heappush(self._heap, (due, self._number, scheduled))
        return scheduled

    def run_next(self, until: float) -> bool:
        """Run the next call if it is due by ``until``; otherwise advance the time to ``until``.

        :returns: whether a call was run
        """
        heap = self._heap
        while heap and heap[0][0] <= until:
            due, _, scheduled = heappop(heap)
            if scheduled.pending:
                scheduled.pending = False
                self._now = max(self._now, due)
                self.ran += 1
                scheduled.call(*scheduled.args)
                return True
        self._now = max(self._now, until)
        return False


class Process:
    """A simulated process, and its scheduler: once it is killed, none of its code runs again.

    :param failed: called with (name, failure) when a coroutine of the process fails
    :ivar random: random source, seeded with the simulation, for the jitter of the process
    :ivar is_disposed: whether the simulation is over, and coroutines are closed
    """

    def __init__(
        self,
        clock: VirtualClock,
        name: str,
        failed: Callable[[str, Failure], object],
        random: RandomSource,
    ) -> None:
        self.name = name
        self.random = random
        self.alive = True
        self.is_disposed = False
        self._clock = clock
        self._failed = failed
        self._kill_callbacks: list[Callable[[], object]] = []
        # Kept alive: a suspended coroutine that is garbage-collected would run its cleanup code,
        # which a killed process does not.
        self._coroutines: list[Coroutine[Any, Any, object]] = []

    def seconds(self) -> float:
        """Now."""
        return self._clock.seconds()

    def callLater(self, delay: float, call: Callable[..., object], *args: object) -> Call:
        """Run ``call(*args)`` once, ``delay`` seconds from now, if the process is alive then."""
        return self._clock.callLater(delay, self._run, call, args)

    def promise(self) -> Deferred[Any]:
        """A new, unresolved promise."""
        return Deferred()

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine as this process."""
        if not self.alive:
            coroutine.close()
            return
        self.start(coroutine).addErrback(
            lambda failure: self._failed(f"{self.name}: {name}", failure)
        )

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Deferred[T]:
        """Run a coroutine as this process, and return its result."""
        self._coroutines.append(coroutine)
        run: _CoroutineRun[T] = _CoroutineRun(self, coroutine)
        run.resume()
        return run.done

    def sleep(self, seconds: float) -> Deferred[None]:
        """A promise that resolves after ``seconds``; in a killed process it never does."""
        if self.is_disposed:
            raise GeneratorExit
        sleeping: Deferred[None] = Deferred()
        self.callLater(seconds, sleeping.callback, None)
        return sleeping

    def on_kill(self, call: Callable[[], object]) -> None:
        """Register a callback for when the process is killed."""
        self._kill_callbacks.append(call)

    def kill(self) -> None:
        """``kill -9``: suspended coroutines are never resumed."""
        self.alive = False
        for call in self._kill_callbacks:
            call()

    def dispose(self) -> None:
        """Close all coroutines after the simulation, ignoring what they raise."""
        self.alive, self.is_disposed = False, True
        for coroutine in self._coroutines:
            with suppress(Exception, GeneratorExit):
                coroutine.close()

    def _run(self, call: Callable[..., object], args: tuple[object, ...]) -> None:
        if self.alive:
            call(*args)


class _RunningProcess:
    """Holds the process whose code is running."""

    def __init__(self) -> None:
        self.process: Process | None = None

    def get(self) -> Process:
        """The running process.

        :raises LookupError: no process is running
        """
        if self.process is None:
            raise LookupError("this is no process's code")
        return self.process


#: The process whose coroutine is running.
CURRENT = _RunningProcess()


class _CoroutineRun(Generic[T]):
    """Drives a coroutine of a process, resuming it when the Deferred it awaits has fired.

    Does what ``Deferred.fromCoroutine`` does at half the cost, which dominates a simulation.

    :ivar done: the result
    """

    __slots__ = ("_coroutine", "_process", "done")

    def __init__(self, process: Process, coroutine: Coroutine[Any, Any, T]) -> None:
        self._process = process
        self._coroutine = coroutine
        self.done: Deferred[T] = Deferred()

    def resume(self, result: object = None) -> None:
        """Resume with the result of the awaited Deferred, unless the simulation is over.

        Then coroutines are closed, and one that cleans up may fire what another one waited for which is closed already.
        """
        if self._process.is_disposed:
            return
        before, CURRENT.process = CURRENT.process, self._process
        try:
            if isinstance(result, Failure):
                waits_for: Deferred[Any] = result.throwExceptionIntoGenerator(self._coroutine)
            else:
                waits_for = self._coroutine.send(result)
        except StopIteration as end:
            CURRENT.process = before
            self.done.callback(end.value)
        except BaseException:
            CURRENT.process = before
            self.done.errback()
        else:
            CURRENT.process = before
            waits_for.addBoth(self.resume)


class CurrentProcess:
    """The scheduler of the running process, for the shared database.

    What the database does on behalf of a process must stop when that process is killed.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def seconds(self) -> float:
        """Now."""
        return self._clock.seconds()

    def random(self) -> float:
        """A random number in [0, 1) from the running process."""
        return CURRENT.get().random()

    def callLater(self, delay: float, call: Callable[..., object], *args: object) -> Call:
        """Run ``call(*args)`` once, ``delay`` seconds from now."""
        return self._clock.callLater(delay, call, *args)

    def promise(self) -> Deferred[Any]:
        """A new, unresolved promise."""
        return Deferred()

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine as the running process."""
        CURRENT.get().spawn(name, coroutine)

    def sleep(self, seconds: float) -> Deferred[None]:
        """A promise that resolves after ``seconds``."""
        return CURRENT.get().sleep(seconds)

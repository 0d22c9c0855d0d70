"""Work on many items, some of them at the same time, and work that goes on without who asked for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from synrepl.core.clock import Promise, Scheduler

T = TypeVar("T")
R = TypeVar("R")


async def map_concurrently(
    scheduler: Scheduler, work: Callable[[T], Awaitable[R]], items: Iterable[T], most: int
) -> list[R]:
    """The results of work on each item, in order.

    After an error, or when the caller is cancelled, no further item is begun. The first error is raised when the items
    that were begun have ended.

    :param most: maximum number of items at the same time
    """
    left = list(enumerate(items))
    left.reverse()
    results: dict[int, R] = {}
    errors: list[BaseException] = []
    running = min(most, len(left))
    if not running:
        return []
    done: Promise[None] = scheduler.promise()

    async def run() -> None:
        nonlocal running
        try:
            while left:
                number, item = left.pop()
                results[number] = await work(item)
        except GeneratorExit:
            raise  # this coroutine is discarded, so no other one is resumed
        except BaseException as error:
            left.clear()
            errors.append(error)
        running -= 1
        if not running:
            done.callback(None)

    for _ in range(running):
        scheduler.spawn("one of several items", run())
    try:
        await done
    finally:
        left.clear()
    if errors:
        raise errors[0]
    return [results[number] for number in sorted(results)]


async def uncancelled(scheduler: Scheduler, name: str, work: Coroutine[Any, Any, T]) -> T:
    """The result of work that is done to its end, also if who waits for it is cancelled.

    :param name: under which an error is logged that nobody waits for
    """
    done: Promise[T] = scheduler.promise()
    is_waiting = True

    async def run() -> None:
        try:
            result = await work
        except Exception as error:
            if not is_waiting:
                raise
            done.errback(error)
        else:
            if is_waiting:
                done.callback(result)

    scheduler.spawn(name, run())
    try:
        return await done
    finally:
        is_waiting = False

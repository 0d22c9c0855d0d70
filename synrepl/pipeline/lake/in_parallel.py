"""Threads for work of the driver on many tables, most of which delta-rs and the store do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

#: Number of threads. On a disk, two suffice; an object store answers in some milliseconds.
THREADS = 8


def in_parallel(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Apply ``work`` to each item, some at the same time, and return the results in order.

    It returns or raises only when nothing runs any more. After an error, items that have not begun
    are left out, and of several errors, that of the first item is raised.
    """
    waiting = [*items]
    if len(waiting) < 2:
        return [work(item) for item in waiting]
    with ThreadPoolExecutor(min(THREADS, len(waiting)), "lake") as threads:
        futures = [threads.submit(work, item) for item in waiting]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(wait=True, cancel_futures=True)
            raise

"""Threads for work of the driver on many tables, most of which delta-rs and the store do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from synrepl.pipeline.lake.storage import LakePath

T = TypeVar("T")
R = TypeVar("R")

#: Number of threads on a disk. More take CPU time from each other and from tasks, and are done no earlier.
DISK_THREADS = 4

#: Number of threads in an object store, which answers in some milliseconds.
STORE_THREADS = 8


def in_parallel(work: Callable[[T], R], items: Iterable[T], lake: LakePath) -> list[R]:
    """Apply ``work`` to each item, some at the same time, and return the results in order.

    It returns or raises only when nothing runs any more. After an error, items that have not begun
    are left out, and of several errors, that of the first item is raised.

    :param lake: where the work is done: the lake, or a part of it
    """
    waiting = [*items]
    if len(waiting) < 2:
        return [work(item) for item in waiting]
    most = DISK_THREADS if isinstance(lake, Path) else STORE_THREADS
    with ThreadPoolExecutor(min(most, len(waiting)), "lake") as threads:
        futures = [threads.submit(work, item) for item in waiting]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(wait=True, cancel_futures=True)
            raise

"""The application of a simulated process: cached functions over the simulated database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from twisted.internet.defer import Deferred

from simulator.application_data import (
    KEYS,
    NUMBERS,
    ApplicationData,
    DataKey,
    tally_of,
    views_of,
)
from simulator.clock import Process
from synrepl.caches.registry import Caches
from synrepl.caches.runtime import CacheRuntime
from synrepl.streams.effects import Expansion, Group, Invalidates, Marks

#: An expansion in the ``caches`` stream: a shelf was moved, and some labels with it.
MOVED = Expansion(
    "shelf_moved",
    (
        Invalidates("item", lambda keys: ((keys[0],),)),
        Invalidates(Group("labels"), lambda keys: ((number,) for number in keys[1:])),
    ),
)


def _tally(row: Any) -> tuple[tuple[int]]:
    return ((tally_of(row.number),),)


#: The effects of a row of ``jobs``.
EFFECTS_OF_JOBS = (
    Invalidates("tally", _tally),
    Invalidates("view", _tally),
    Marks("tallies", lambda row: (tally_of(row.number),)),
)


class LoadFailed(Exception):
    """An exception of a user's cached function."""


@dataclass(frozen=True, slots=True)
class LoadBehaviour:
    """The behaviour of cache loads.

    :ivar slow_s: maximum seconds before, and after, the database is read
    :ivar fails: probability that a load fails
    :ivar hangs: probability that a load never ends
    :ivar entries: maximum entries of a cache
    """

    slow_s: float
    fails: float
    hangs: float
    entries: int


class Application:
    """The cached functions of one process.

    :ivar caches: the caches, which the services of the process keep coherent
    :ivar index: the change index of tallies
    :ivar keys: the keys that can be read in this process
    :ivar faults_off: whether loads have stopped failing and hanging
    """

    def __init__(
        self, process: Process, data: ApplicationData, random: Random, loading: LoadBehaviour
    ) -> None:
        self.faults_off = False
        self._process = process
        self._data = data
        self._random = random
        self._loading = loading
        caches = self.caches = Caches(CacheRuntime(Deferred, process.start, process.seconds))
        caches.expand(MOVED)
        caches.on_rows("jobs", *EFFECTS_OF_JOBS)
        self.index = caches.index("jobs", "tallies", entries=1)
        self.keys = (*KEYS, *views_of(process.name))
        entries = loading.entries

        @caches.cached(max_entries=entries, tree=True, by_name=True)
        async def item(shelf: str, number: int) -> int:
            return (await self._load([("item", shelf, number)]))[0]

        @caches.cached_list(item, many="numbers")
        async def items(shelf: str, numbers: Sequence[int]) -> Mapping[int, int]:
            keys: list[DataKey] = [("item", shelf, number) for number in numbers]
            return dict(zip(numbers, await self._load(keys), strict=True))

        @caches.cached(max_entries=entries, by_name=True, groups=("labels",))
        def label(number: int) -> Deferred[int]:
            found: Deferred[list[int]] = process.start(self._load([("label", number)]))
            return found.addCallback(lambda versions: versions[0])

        @caches.cached(max_entries=entries)
        def tally(number: int) -> int:
            return data.version(("tally", number))

        @caches.cached(max_entries=entries)
        async def view(number: int) -> int:
            return (await self._load([("view", process.name, number)]))[0]

        self._items = items
        self._one: dict[object, Any] = {
            "item": item,
            "label": label,
            "tally": tally,
            "view": lambda _, number: view(number),
        }

    async def read(self, key: DataKey) -> int:
        """The version of a key, from its cached function.

        :raises LoadFailed: the load failed
        """
        name, *arguments = key
        answer = self._one[name](*arguments)
        version: int = await answer if hasattr(answer, "__await__") else answer
        return version

    async def read_shelf(self, shelf: str) -> Mapping[DataKey, int]:
        """The versions of all items of a shelf, from ``@cached_list``.

        :raises LoadFailed: the load failed
        """
        found = await self._items(shelf, NUMBERS)
        return {("item", shelf, number): version for number, version in found.items()}

    async def _load(self, keys: Iterable[DataKey]) -> list[int]:
        await self._process.sleep(self._pause())
        dice = self._random.random()
        if not self.faults_off and dice < self._loading.fails:
            raise LoadFailed()
        if not self.faults_off and dice > 1 - self._loading.hangs:
            await Deferred()
        versions = [self._data.version(key) for key in keys]
        await self._process.sleep(self._pause())
        return versions

    def _pause(self) -> float:
        return self._random.random() ** 2 * self._loading.slow_s

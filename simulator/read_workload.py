"""Cache reads in all processes, each checked against the positions of the process at the time."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from random import Random
from typing import Any, Protocol

from simulator.application import Application, LoadFailed
from simulator.application_data import (
    ITEMS,
    SHELVES,
    TALLIES,
    ApplicationData,
    DataKey,
    VersionFact,
)
from simulator.clock import Process, VirtualClock
from simulator.truth import Violations
from synrepl.caches.changes import HasChanged
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Token

#: Maximum seconds for which a reader waits for what was written elsewhere.
WAIT_S = 5.0


class ReadingActor(Protocol):
    """An actor whose process has the application."""

    name: str
    process: Process | None
    application: Application | None

    @property
    def positions(self) -> Mapping[tuple[str, str], Token]:
        """The positions it reports; empty while it is down."""


class WaitingActor(ReadingActor, Protocol):
    """An actor that can wait for a position."""

    async def wait_for(self, fact: VersionFact, timeout_s: float) -> None:
        """Wait until the process has applied everything up to a fact.

        :raises SynreplError: it has not, or not in time
        """


class ReadWorkload:
    """Reads at random, and wherever data has just changed.

    :param followers: the processes that can wait for a position
    :ivar reads: number of checked reads
    """

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        violations: Violations,
        data: ApplicationData,
        processes: Sequence[ReadingActor],
        followers: Sequence[WaitingActor],
    ) -> None:
        self._clock = clock
        self._random = random
        self._violations = violations
        self._data = data
        self._processes = processes
        self._followers = followers
        self.reads = 0

    def read_anything(self) -> None:
        """Read a few keys in one process."""
        actor = self._random.choice(self._processes)
        if actor.application is not None:
            for key in self._random.sample(actor.application.keys, 3):
                self.read(actor, key)
            self._spawn(actor, self._read_shelf(actor, self._random.choice(SHELVES)))
            self._look_into_index(actor, actor.application)

    def read_everything(self) -> None:
        """Read every key in every process."""
        for actor in self._processes:
            for key in () if actor.application is None else actor.application.keys:
                self.read(actor, key)

    def changed(self, key: DataKey) -> None:
        """A key has changed: schedule reads while the change propagates, and afterwards."""
        actor = self._random.choice(self._processes)
        if key[0] == "view":
            actor = next(process for process in self._processes if process.name == key[1])
        for _ in range(3):
            self._clock.callLater(self._random.random() ** 2 * 0.5, self.read, actor, key)

    def changed_by(self, actor: ReadingActor, versions: Mapping[DataKey, int]) -> None:
        """A process has changed data: reads there must see it, as must reads elsewhere that wait for it."""
        for key, version in versions.items():
            self.read(actor, key, version)
        follower = self._random.choice(self._followers)
        if versions and self._random.random() < 0.3:
            fact = self._data.fact_of(*next(iter(versions.items())))
            self._spawn(follower, self._wait_and_read(follower, fact, versions))

    def read(self, actor: ReadingActor, key: DataKey, least: int = 0) -> None:
        """Read one key.

        :param least: the oldest allowed version, whatever the positions of the process
        """
        self._spawn(actor, self._read(actor, key, least))

    def _spawn(self, actor: ReadingActor, read: Coroutine[Any, Any, None]) -> None:
        if actor.process is None:
            read.close()
        else:
            actor.process.spawn("read", read)

    async def _read(self, actor: ReadingActor, key: DataKey, least: int) -> None:
        application, at = actor.application, actor.positions
        if application is None:
            return
        least = max(least, self._data.least(key, at))
        try:
            version = await application.read(key)
        except LoadFailed:
            return
        self._compare(actor, key, version, least, at)

    async def _read_shelf(self, actor: ReadingActor, shelf: str) -> None:
        application, at = actor.application, actor.positions
        if application is None:
            return
        least = {key: self._data.least(key, at) for key in ITEMS}
        try:
            versions = await application.read_shelf(shelf)
        except LoadFailed:
            return
        for key, version in versions.items():
            self._compare(actor, key, version, least[key], at)

    def _look_into_index(self, actor: ReadingActor, application: Application) -> None:
        at = actor.positions
        for key in TALLIES:
            since = self._random.randint(0, max(at.values(), default=0))
            answer = application.index.has_changed(key[1], since)
            if answer is HasChanged.NO and self._data.has_changed(key, since, at):
                self._violations.add(
                    "R4", "{name} got the answer that {key} is unchanged since {since}, at {at} it is not",
                    name=actor.name, key=key, since=since, at=dict(at),
                )  # fmt: skip

    async def _wait_and_read(
        self, actor: WaitingActor, fact: VersionFact, versions: Mapping[DataKey, int]
    ) -> None:
        try:
            await actor.wait_for(fact, WAIT_S)
        except SynreplError:
            return
        for key, version in versions.items():
            self.read(actor, key, version)

    def _compare(
        self,
        actor: ReadingActor,
        key: DataKey,
        version: int,
        least: int,
        at: Mapping[tuple[str, str], Token],
    ) -> None:
        self.reads += 1
        if version < least:
            self._violations.add(
                "R4", "{name} read version {version} of {key}, at {at} it had to be {least}",
                name=actor.name, version=version, key=key, least=least, at=dict(at),
            )  # fmt: skip

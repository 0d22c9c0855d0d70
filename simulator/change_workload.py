"""Changes to the application's data, by transactions of the product and by plain SQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from simulator.application import MOVED
from simulator.application_data import ITEMS, LABELS, ApplicationTransaction, DataKey
from simulator.clock import Process
from simulator.interfaces import InvalidationOutbox
from simulator.read_workload import ReadingActor, ReadWorkload
from simulator.transcript import Transcript
from simulator.truth import Violations
from simulator.workload import JOBS, AppendingActor, RolledBack
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Token
from synrepl.storage.database import CommitUnknown, Transaction
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row
from synrepl.streams.synapse.caches import CACHES, CachesRow


@dataclass(frozen=True, slots=True)
class DataChange:
    """A change that the application makes to its data.

    :ivar keys: the keys that it changes
    :ivar stale: the invalidations it emits: names of caches or expansions, each with a key, or None
        for the whole cache
    """

    keys: Sequence[DataKey]
    stale: Sequence[tuple[str, tuple[str | int, ...] | None]]

    @classmethod
    def draw(cls, random: Random) -> DataChange:
        """Draw a change of any kind."""
        return random.choice((_one, _one, _several, _shelf, _all_labels, _moved))(random)


def _one(random: Random) -> DataChange:
    key = random.choice((*ITEMS, *LABELS))
    return _each([key])


def _several(random: Random) -> DataChange:
    return _each(random.sample((*ITEMS, *LABELS), random.randint(2, 4)))


def _each(keys: Sequence[DataKey]) -> DataChange:
    return DataChange(keys, [(str(name), tuple(arguments)) for name, *arguments in keys])


def _shelf(random: Random) -> DataChange:
    shelf = random.choice(ITEMS)[1]
    return DataChange([key for key in ITEMS if key[1] == shelf], [("item", (shelf,))])


def _all_labels(random: Random) -> DataChange:
    return DataChange(LABELS, [("label", None)])


def _moved(random: Random) -> DataChange:
    shelf = random.choice(ITEMS)[1]
    labels = random.sample(LABELS, random.randint(0, 2))
    items = [key for key in ITEMS if key[1] == shelf]
    return DataChange([*items, *labels], [(MOVED.name, (shelf, *(key[1] for key in labels)))])


class ChangingActor(AppendingActor, ReadingActor, Protocol):
    """An actor that changes and reads data."""


class ChangingSqlTransaction(Protocol):
    """A transaction of plain SQL."""

    def change(self, key: DataKey) -> None:
        """Give a key a new version, inside the transaction."""

    async def append(self, stream: Stream, rows: Sequence[Row]) -> Token:
        """Append one fact, inside the transaction."""

    async def commit(self) -> None: ...

    async def roll_back(self) -> None: ...


class ChangeWorkload:
    """Generates changes, has them made, and has the changed keys read.

    :param jobs: generates the rows of one fact
    :param begin_sql: begins a transaction of plain SQL
    """

    def __init__(
        self,
        random: Random,
        transcript: Transcript,
        violations: Violations,
        read_workload: ReadWorkload,
        jobs: Callable[[], Sequence[Row]],
        begin_sql: Callable[[], Awaitable[ChangingSqlTransaction]],
    ) -> None:
        self._random = random
        self._transcript = transcript
        self._violations = violations
        self._read_workload = read_workload
        self._jobs = jobs
        self._begin_sql = begin_sql

    def change(self, actor: ChangingActor) -> None:
        """Change data in a transaction of the product, sometimes appending jobs as well."""
        process = actor.process
        if process is not None and actor.writer is not None and actor.ready:
            jobs = [self._jobs()] if self._random.random() < 0.2 else []
            process.spawn("change", self._change(actor, DataChange.draw(self._random), jobs))

    def change_sql(self, process: Process) -> None:
        """Change data in plain SQL, which inserts the row of ``caches`` itself."""
        process.spawn("change in plain SQL", self._sql(process, DataChange.draw(self._random)))

    async def _change(
        self, actor: ChangingActor, change: DataChange, jobs: Sequence[Sequence[Row]]
    ) -> None:
        runs: list[ApplicationTransaction] = []

        def work(txn: Transaction, outbox: InvalidationOutbox) -> None:
            assert isinstance(txn, ApplicationTransaction)
            runs.append(txn)
            for key in change.keys:
                txn.change(key)
            for name, stale in change.stale:
                if stale is None:
                    outbox.invalidate_all(name)
                else:
                    outbox.invalidate(name, stale)
            for rows in jobs:
                outbox.append(JOBS, rows)
            if self._random.random() < 0.1:
                raise RolledBack()

        assert actor.writer is not None
        try:
            await actor.writer.change("change", work, [JOBS] if jobs else [])
        except CommitUnknown as error:
            self._log(actor.name, "does not know whether {keys} have changed: {error}",
                      keys=change.keys, error=error)  # fmt: skip
            for txn in runs:
                self._read_workload.changed_by(actor, txn.versions or {})
            return
        except (SynreplError, RolledBack) as error:
            self._log(actor.name, "failed to change {keys}: {error!r}",
                      keys=change.keys, error=error)  # fmt: skip
            if any(txn.versions is not None for txn in runs):
                self._violations.add(
                    "ONCE", "{name} got the answer that its change was rolled back, it was committed",
                    name=actor.name,
                )  # fmt: skip
            return
        committed = [txn.versions for txn in runs if txn.versions is not None]
        if len(committed) != 1:
            self._violations.add(
                "ONCE", "{name} got the answer that its change was committed, it was {times} times",
                name=actor.name, times=len(committed),
            )  # fmt: skip
            return
        self._log(actor.name, "changed {versions}", versions=committed[0])
        self._read_workload.changed_by(actor, committed[0])

    async def _sql(self, process: Process, change: DataChange) -> None:
        try:
            txn = await self._begin_sql()
            for key in change.keys:
                txn.change(key)
            rows: list[Any] = [
                CachesRow(name, None if key is None else list(key), 0) for name, key in change.stale
            ]
            token = await txn.append(CACHES, rows)
            self._log("plain SQL", "took {token} of caches to change {keys}",
                      token=token, keys=change.keys)  # fmt: skip
            await process.sleep(self._random.random() ** 3 * 3)
            if self._random.random() < 0.3:
                await txn.roll_back()
            else:
                await txn.commit()
        except SynreplError as error:
            self._log("plain SQL", "failed: {error}", error=error)

    def _log(self, who: str, words: str, **facts: object) -> None:
        self._transcript.add(who, words, **facts)

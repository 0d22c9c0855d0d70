"""Whoever changes the application's data: the product's transactions, and plain SQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, Protocol

from simulator.application_data import ApplicationTransaction, DataKey
from simulator.change import Change
from simulator.clock import Life
from simulator.parts import StaleOutbox
from simulator.readers import Readers, Reading
from simulator.transcript import Transcript
from simulator.truth import Judge
from simulator.workload import JOBS, RolledBack, Writing
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Token
from synrepl.storage.database import CommitUnknown, Transaction
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row
from synrepl.streams.synapse.caches import CACHES, CachesRow


class Changing(Writing, Reading, Protocol):
    """An actor that changes data, and reads it."""


class ChangingSql(Protocol):
    """A transaction of plain SQL."""

    def change(self, key: DataKey) -> None:
        """Give a key a new version, inside the transaction."""

    async def append(self, stream: Stream, rows: Sequence[Row]) -> Token:
        """Append one fact, inside the transaction."""

    async def commit(self) -> None: ...

    async def roll_back(self) -> None: ...


class Changers:
    """Makes up changes, has them made, and has read what they have changed.

    :param jobs: makes up the rows of one fact
    :param begin_sql: begins a transaction of plain SQL
    """

    def __init__(
        self,
        random: Random,
        transcript: Transcript,
        judge: Judge,
        readers: Readers,
        jobs: Callable[[], Sequence[Row]],
        begin_sql: Callable[[], Awaitable[ChangingSql]],
    ) -> None:
        self._random = random
        self._transcript = transcript
        self._judge = judge
        self._readers = readers
        self._jobs = jobs
        self._begin_sql = begin_sql

    def change(self, actor: Changing) -> None:
        """Change something in a transaction of the product; now and then append jobs, too."""
        life = actor.life
        if life is not None and actor.writer is not None and actor.ready:
            jobs = [self._jobs()] if self._random.random() < 0.2 else []
            life.spawn("change", self._change(actor, Change.draw(self._random), jobs))

    def change_sql(self, life: Life) -> None:
        """The same in plain SQL: its author writes the row of ``caches`` himself."""
        life.spawn("change in plain SQL", self._sql(life, Change.draw(self._random)))

    async def _change(self, actor: Changing, change: Change, jobs: Sequence[Sequence[Row]]) -> None:
        runs: list[ApplicationTransaction] = []

        def work(txn: Transaction, outbox: StaleOutbox) -> None:
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
            self._say(actor.name, "does not know whether {keys} have changed: {error}",
                      keys=change.keys, error=error)  # fmt: skip
            for txn in runs:
                self._readers.changed_by(actor, txn.versions or {})
            return
        except (SynreplError, RolledBack) as error:
            self._say(actor.name, "failed to change {keys}: {error!r}",
                      keys=change.keys, error=error)  # fmt: skip
            if any(txn.versions is not None for txn in runs):
                self._judge.broken(
                    "ONCE", "{name} was told that its change was rolled back, it was committed",
                    name=actor.name,
                )  # fmt: skip
            return
        committed = [txn.versions for txn in runs if txn.versions is not None]
        if len(committed) != 1:
            self._judge.broken(
                "ONCE", "{name} was told that its change was committed, it was {times} times",
                name=actor.name, times=len(committed),
            )  # fmt: skip
            return
        self._say(actor.name, "changed {versions}", versions=committed[0])
        self._readers.changed_by(actor, committed[0])

    async def _sql(self, life: Life, change: Change) -> None:
        try:
            txn = await self._begin_sql()
            for key in change.keys:
                txn.change(key)
            rows: list[Any] = [
                CachesRow(name, None if key is None else list(key), 0) for name, key in change.stale
            ]
            token = await txn.append(CACHES, rows)
            self._say("plain SQL", "took {token} of caches to change {keys}",
                      token=token, keys=change.keys)  # fmt: skip
            await life.sleep(self._random.random() ** 3 * 3)
            if self._random.random() < 0.3:
                await txn.roll_back()
            else:
                await txn.commit()
        except SynreplError as error:
            self._say("plain SQL", "failed: {error}", error=error)

    def _say(self, who: str, words: str, **facts: object) -> None:
        self._transcript.add(who, words, **facts)

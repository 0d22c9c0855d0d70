"""Observes a real server over Redis, with ``synrepl watch`` and ``doctor`` beside it."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from interop import polling, synrepl_watch
from interop.processes import Process
from interop.redis_wire import Key, RedisWire
from interop.synapse_tables import OpenTransaction, SynapseTables
from interop.synrepl_watch import Diagnosis, SynreplWatch, WatchSample

_QUIET_S = 3.0
_LONGEST_S = 60.0

#: Seconds between stopping and observing; announcements in transit arrive meanwhile.
_SETTLES_S = 0.05


@dataclass(frozen=True, slots=True)
class StoppedProcess:
    """The state of a stopped process.

    :ivar writes: its transactions that have written something
    :ivar committed: its position in a stream, in the database
    :ivar announced: its position on the wire
    """

    writes: list[OpenTransaction]
    committed: int
    announced: int


@dataclass(frozen=True, slots=True)
class QuietSnapshot:
    """All sides at a quiet moment: the wire, the database, and what ``synrepl watch`` says.

    :ivar announced: the position of each writer of each stream on the wire
    :ivar rows: lines RDATA by stream and writer
    :ivar recorded: the positions in the database, by stream and writer
    """

    announced: Mapping[Key, int]
    rows: Counter[Key]
    recorded: Mapping[Key, int]
    look: WatchSample

    @property
    def wrong(self) -> list[str]:
        """Wrong figures of ``synrepl watch``, as sentences."""
        heard, committed = self.look.by_key("heard"), self.look.by_key("committed")
        faults = [
            f"{_key_text(key)} heard at {heard.get(key)}, announced {self.announced.get(key)}"
            for key in sorted(heard.keys() | self.announced.keys())
            if heard.get(key) != self.announced.get(key)
        ]
        faults += [
            f"{_key_text(key)} committed at {committed.get(key)}, recorded {at}"
            for key, at in sorted(self.recorded.items())
            if committed.get(key) != at
        ]
        return faults + self.look.trouble + self.look.alarms

    def miscounted(self, since: QuietSnapshot) -> list[str]:
        """Writers whose rows ``synrepl watch`` counted wrongly, as sentences.

        :param since: an earlier snapshot, from which both counts start
        """
        counted_rows, before = self.look.by_key("rows"), since.look.by_key("rows")
        return [
            f"{_key_text(key)} {counted} rows instead of {came}"
            for key in sorted(counted_rows.keys() | self.rows.keys())
            if (counted := counted_rows.get(key, 0) - before.get(key, 0))
            != (came := self.rows[key] - since.rows[key])
        ]

    @property
    def behind(self) -> list[str]:
        """Writers that have not announced what is in the database, as sentences."""
        return [
            f"{_key_text(key)} announced {self.announced.get(key)}, recorded {at}"
            for key, at in sorted(self.recorded.items())
            if self.announced.get(key, 0) < at
        ]


class SynapseObserver:
    """Observes a server, and stops one of its processes.

    :param process: of the server, which may be stopped
    :param name: its name
    :param stream: one that it writes
    :param dsn: of the server's database
    """

    def __init__(
        self,
        process: Process,
        name: str,
        stream: str,
        dsn: str,
        wire: RedisWire,
        watch: SynreplWatch,
        tables: SynapseTables,
    ) -> None:
        self._process = process
        self._name = name
        self._key = (stream, name)
        self._dsn = dsn
        self._wire = wire
        self._watch = watch
        self._tables = tables

    def quiet_snapshot(self) -> QuietSnapshot:
        """Wait until nothing moves and ``synrepl watch`` has seen that; or for long enough."""

        def sides() -> tuple[dict[Key, int], Counter[Key], dict[Key, int]]:
            return self._wire.announced(), self._wire.rows(), self._tables.positions()

        quiet_snapshot: QuietSnapshot | None = None
        give_up = time.monotonic() + _LONGEST_S
        while quiet_snapshot is None or (quiet_snapshot.wrong and time.monotonic() < give_up):
            announced, rows, recorded = polling.wait_until_stable(sides, _QUIET_S, _LONGEST_S)
            look = polling.wait_until("a look of our watch", self._watch.last)
            quiet_snapshot = QuietSnapshot(announced, rows, recorded, look)
        return quiet_snapshot

    def well(self) -> None:
        """Wait until ``synrepl watch`` finds nothing wrong.

        :raises NotInTime: it does
        """

        def well() -> bool:
            look = self._watch.last()
            return look is not None and look.well

        polling.wait_until("our watch to find all well", well, _LONGEST_S)

    def doctor(self, older: float = synrepl_watch.OLDER_S) -> Diagnosis:
        """Run ``synrepl doctor``.

        :param older: minimum age of reported transactions, in seconds
        """
        return synrepl_watch.doctor(self._dsn, older)

    def oldest(self) -> OpenTransaction | None:
        """The oldest open transaction in the database."""
        return self._tables.oldest()

    def samples(self) -> list[WatchSample]:
        """All samples of ``synrepl watch`` so far."""
        return self._watch.samples()

    def said(self) -> list[str]:
        """The standard error of ``synrepl watch``."""
        return self._watch.said()

    def alarms(self) -> list[str]:
        """The alarms of ``synrepl watch``."""
        look = self._watch.last()
        return [] if look is None else look.alarms

    @contextmanager
    def stopped(
        self, what: str, wanted: Callable[[StoppedProcess], bool], chance: random.Random
    ) -> Iterator[StoppedProcess]:
        """Stop the process (SIGSTOP) repeatedly, until its state is as wanted; it stays stopped for the block.

        :param what: the wanted state, for messages
        :param chance: when to stop it
        :raises NotInTime: it never was in that state
        """
        give_up = time.monotonic() + _LONGEST_S
        while time.monotonic() < give_up:
            time.sleep(chance.uniform(0.02, 0.1))
            self._process.pause()
            try:
                time.sleep(_SETTLES_S)
                moment = self._moment()
                if wanted(moment):
                    yield moment
                    return
            finally:
                self._process.resume()
        raise polling.NotInTime(what=f"{self._name} {what}", seconds=_LONGEST_S)

    def _moment(self) -> StoppedProcess:
        return StoppedProcess(
            self._tables.open_writes(self._name),
            self._tables.positions().get(self._key, 0),
            self._wire.announced().get(self._key, 0),
        )


def _key_text(key: Key) -> str:
    stream, writer = key
    return f"{stream} of {writer}"

"""Audits cache entries: random entries are compared with freshly loaded values.

A difference alone proves nothing, because an invalidation may be on its way. The audit
therefore waits until this process has applied everything that is committed by then. An entry
that is still in the cache afterwards, and still differs, is stale; no reader may get it (R4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

from synrepl.caches.entries import Entry
from synrepl.core.clock import Scheduler
from synrepl.core.errors import Refused, SynreplError
from synrepl.core.log import Logger
from synrepl.services.coherence.coherence import Coherence
from synrepl.tools.audit.fresh_loads import CacheGone, FreshLoads
from synrepl.tools.audit.missed_rows import EntryPositions, MissedRows, RememberedPositions
from synrepl.tools.audit.report import JUDGED, MOST_STALE, AuditReport, AuditVerdict, StaleEntry
from synrepl.tools.audit.sample import EntryLocation, are_equal, describe, pick
from synrepl.tools.audit.settlement import Committed, Settlement

#: Maximum number of entries per audit.
MOST_KEYS = 10_000

#: Time limits of one audit, in seconds: waiting for committed facts in total, and overall.
WAIT_S = 10.0
AUDIT_S = 300.0


class AuditInProgress(Refused):
    """the caches of this process are being audited already; try again when that is over"""


@dataclass(slots=True)
class _WaitBudget:
    """The time that an audit may still wait, in seconds."""

    left_s: float


class Auditor:
    """Finds stale entries, and drops them.

    :param settlement: the settlement of the same process
    :param rows: the missed rows of the same process
    :param random: the source of randomness that picks the entries
    :ivar audited: entries that were judged, by cache
    :ivar incoherent: those of them that were stale
    """

    def __init__(
        self,
        scheduler: Scheduler,
        coherence: Coherence,
        settlement: Settlement,
        rows: MissedRows,
        log: Logger,
        random: Random,
    ) -> None:
        self._scheduler = scheduler
        self._coherence = coherence
        self._caches = coherence.caches
        self._settlement = settlement
        self._rows = rows
        self._loads = FreshLoads(scheduler)
        self._log = log
        self._random = random
        self._is_running = False
        self.audited: Counter[str] = Counter()
        self.incoherent: Counter[str] = Counter()

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """The counters by cache, ready for JSON."""
        return {
            "audited": dict(self.audited),
            "incoherent": {name: self.incoherent[name] for name in self.audited},
        }

    async def audit(self, keys: int) -> AuditReport:
        """Audit up to ``keys`` random entries of all caches, one after the other.

        :raises AuditInProgress: an audit is running
        """
        if self._is_running:
            raise AuditInProgress()
        self._is_running = True
        try:
            return await self._audit(keys)
        finally:
            self._is_running = False

    async def audit_one(self) -> None:
        """Audit one random entry, even while an audit runs."""
        await self._audit(1)

    async def _audit(self, keys: int) -> AuditReport:
        report = AuditReport()
        budget = _WaitBudget(WAIT_S)
        began = self._scheduler.seconds()
        locations = pick(self._caches, min(keys, MOST_KEYS), self._random)
        for done, location in enumerate(locations):
            if self._scheduler.seconds() > began + AUDIT_S:
                report.left = len(locations) - done
                break
            entry = self._entry(location)
            if entry is None:  # dropped since it was picked
                continue
            try:
                verdict = await self._judge(location, entry, report, budget)
            except CacheGone:
                continue
            except Exception as error:  # a user's function may raise anything
                report.count_failure(location.cache.name, error)
                verdict = AuditVerdict.FAILED
            report.verdicts[verdict] += 1
            if verdict in JUDGED:
                self.audited[location.cache.name] += 1
            await self._yield_turn()
        more = report.verdicts[AuditVerdict.STALE] - len(report.stale)
        if more:
            self._log.warn("{more} more cache entries were stale, and are dropped", more=more)
        return report

    async def _judge(
        self, location: EntryLocation, entry: Entry, report: AuditReport, budget: _WaitBudget
    ) -> AuditVerdict:
        """Judge one entry.

        :raises Exception: whatever the cached function raises
        """
        before = await self._loads.load(location)
        equal = are_equal(entry.value, before)
        if equal is None:
            return AuditVerdict.INCOMPARABLE
        if equal:
            return AuditVerdict.COHERENT
        if self._entry(location) is not entry:
            return AuditVerdict.IN_FLIGHT
        # Observed after the load, so the rows of everything it has read are committed.
        committed = await self._settlement.observe(
            self._coherence.sources(location.cache.declaration)
        )
        if not await self._reach(committed, budget):
            return AuditVerdict.BEHIND
        for _ in range(2):
            fresh = await self._loads.load(location)
            if self._entry(location) is not entry or are_equal(entry.value, fresh):
                return AuditVerdict.IN_FLIGHT
            # A value is known to be comparable only if two loads of it are equal.
            if are_equal(before, fresh):
                await self._drop_stale(location, entry, fresh, committed, report)
                return AuditVerdict.STALE
            before = fresh
        return AuditVerdict.INCOMPARABLE

    async def _reach(self, committed: Committed, budget: _WaitBudget) -> bool:
        """Wait until this process has applied what is committed; False if that takes too long."""
        began = self._scheduler.seconds()
        try:
            return await self._settlement.reach(committed, began + budget.left_s)
        finally:
            waited = self._scheduler.seconds() - began
            budget.left_s = max(0.0, budget.left_s - waited)

    async def _drop_stale(
        self,
        location: EntryLocation,
        entry: Entry,
        fresh: object,
        committed: Committed,
        report: AuditReport,
    ) -> None:
        """Drop a stale entry at once, then search for the row that should have dropped it."""
        cache = location.cache
        cache.invalidate(location.key)
        self.incoherent[cache.name] += 1
        if len(report.stale) == MOST_STALE:
            return
        at_load = self._rows.positions_at(entry.moment)
        positions = {
            stream: dict(self._positions_of(stream, seen.writers, at_load))
            for stream, seen in committed.seen.items()
        }
        try:
            searched = await self._rows.find(location, positions, committed.seen)
        except SynreplError:
            searched = None
        stale = StaleEntry(
            cache.name,
            location.printable_key(),
            describe(entry.value),
            describe(fresh),
            positions,
            searched,
        )
        report.stale.append(stale)
        self._log.warn(
            "an entry of cache {cache} was stale, and is dropped: key {key}: {expected}",
            cache=stale.cache,
            key=stale.key,
            expected=stale.expected,
        )

    def _positions_of(
        self, stream: str, writers: Iterable[str], at_load: RememberedPositions
    ) -> Iterator[tuple[str, EntryPositions]]:
        for name in sorted(writers):
            writer, now = self._settlement.position(stream, name)
            yield writer, EntryPositions(at_load.of(stream, writer), now)

    def _entry(self, location: EntryLocation) -> Entry | None:
        return location.entry(self._caches.runtime.seconds())

    async def _yield_turn(self) -> None:
        """Give up the reactor turn, even when loads never wait."""
        turn = self._scheduler.promise()
        self._scheduler.callLater(0, turn.callback, None)
        await turn


async def sample_caches(scheduler: Scheduler, auditor: Auditor, every_s: float, keys: int) -> None:
    """Audit ``keys`` entries every ``every_s`` seconds, evenly spread, while the process runs."""
    while True:
        await scheduler.sleep(every_s / keys)
        await auditor.audit_one()

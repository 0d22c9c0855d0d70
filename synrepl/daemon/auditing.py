"""The auditor of a process's caches, wired from its configuration."""

from __future__ import annotations

from random import SystemRandom

from synrepl.core.clock import Scheduler
from synrepl.daemon.config import AuditCaches
from synrepl.services.announcing.announce import Log
from synrepl.services.auditing.audit import Auditor
from synrepl.services.auditing.missed_rows import MissedRows
from synrepl.services.auditing.sample_caches import sample_caches
from synrepl.services.auditing.settlement import Settlement
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.waiting.own_positions import OwnPositions
from synrepl.services.waiting.wait_for import WaitFor
from synrepl.storage.store import FactStore
from synrepl.streams.catalogue import Catalogue


def start_auditor(
    scheduler: Scheduler,
    wanted: AuditCaches,
    coherence: Coherence,
    catalogue: Catalogue,
    store: FactStore,
    own: OwnPositions,
    waiting: WaitFor,
    log: Log,
    *,
    as_master: bool,
) -> Auditor:
    """An auditor, and the sampler that has it look at a few entries all the time."""
    settlement = Settlement(scheduler, catalogue, store, own, waiting, in_memory=as_master)
    rows = MissedRows(coherence, catalogue, store)
    auditor = Auditor(scheduler, coherence, settlement, rows, log, SystemRandom())
    if wanted.every:
        scheduler.spawn(
            "audit caches", sample_caches(scheduler, auditor, wanted.every, wanted.keys)
        )
    return auditor

"""The auditor of a process's caches, wired."""

from __future__ import annotations

from random import SystemRandom

from synrepl.core.clock import Scheduler
from synrepl.core.log import Logger
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.waiting.applied_positions import AppliedPositions
from synrepl.services.waiting.wait_for import WaitFor
from synrepl.storage.store import FactStore
from synrepl.streams.catalogue import Catalogue
from synrepl.tools.audit.audit import Auditor
from synrepl.tools.audit.missed_rows import MissedRows
from synrepl.tools.audit.settlement import Settlement


def auditor_of(
    scheduler: Scheduler,
    coherence: Coherence,
    catalogue: Catalogue,
    store: FactStore,
    own: AppliedPositions,
    waiting: WaitFor,
    log: Logger,
    *,
    in_memory: bool,
) -> Auditor:
    """The auditor of a process's caches.

    :param in_memory: streams in memory are in ``store``, too
    """
    settlement = Settlement(scheduler, catalogue, store, own, waiting, in_memory=in_memory)
    rows = MissedRows(coherence, catalogue, store)
    return Auditor(scheduler, coherence, settlement, rows, log, SystemRandom())

"""What a process stands on, and the wiring that masters and workers share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import SystemRandom
from typing import Protocol, TypeVar

from synrepl.core.clock import Scheduler
from synrepl.core.log import Logger
from synrepl.daemon.config.config import Config
from synrepl.daemon.process_bus import ConnectToBus
from synrepl.services.announcing.stream_state import PositionListener
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.coherence.invalidations import Changes, Invalidations
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.possible_tokens import PossibleTokens
from synrepl.services.sizes import DEFAULT_SIZES, Sizes
from synrepl.services.sources import CatchUpSources, FactSource
from synrepl.services.waiting.applied_positions import AppliedPositions
from synrepl.services.waiting.wait_for import WaitFor
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import Database
from synrepl.storage.incarnations import Incarnations
from synrepl.storage.store import FactStore
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.caches import CACHES
from synrepl.tools.audit.audit import Auditor
from synrepl.tools.audit.missed_rows import MissedRows
from synrepl.tools.audit.sample_caches import sample_caches
from synrepl.tools.audit.settlement import Settlement

T = TypeVar("T")


class UntilDone(Protocol):
    """Runs a step of a start, again while the database is away."""

    def __call__(self, step: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """The result of the step.

        :raises SynreplError: waiting does not help
        """


def unchanged(movements: PositionListener) -> PositionListener:
    """Nobody watches what is announced."""
    return movements


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What every process stands on.

    :ivar join: makes its connections to Redis; for a configuration with ``redis``
    :ivar coherence: of the process's caches, already checked
    :ivar handlers: of the user
    :ivar until_done: runs the steps of the start
    :ivar watched: puts an observer in front of what is announced
    """

    scheduler: Scheduler
    log: Logger
    coherence: Coherence
    until_done: UntilDone
    connect_bus: ConnectToBus | None = None
    handlers: Sequence[Subscription] = ()
    watched: Callable[[PositionListener], PositionListener] = unchanged
    sizes: Sizes = DEFAULT_SIZES


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPorts(Ports):
    """What a worker stands on.

    :ivar store: None for a worker without a database
    :ivar database: for the record of its positions, and for transactional handlers
    :ivar incarnations: those of the database's server that the process has met
    :ivar source: where it fetches what it missed
    :ivar catch_up_sources: where handlers get facts from the past; None where nobody has them
    :ivar tokens: which tokens can have been given out
    """

    store: FactStore | None
    database: Database | None
    incarnations: Incarnations
    source: FactSource
    catch_up_sources: CatchUpSources | None
    tokens: PossibleTokens


def begin_sampling(ports: Ports, config: Config, auditor: Auditor) -> None:
    """Have a few entries compared with the database all the time."""
    audits = config.audit_caches
    if audits.every:
        sampling = sample_caches(ports.scheduler, auditor, audits.every, audits.keys)
        ports.scheduler.spawn("audit caches", sampling)


def changes_of(
    ports: Ports, coherence: Coherence, writer: StreamWriter, own: Sequence[Stream]
) -> Changes | None:
    """What writes the ``caches`` stream, if this process does."""
    if CACHES not in own:
        return None
    most = ports.sizes.invalidation_keys
    rows = Invalidations(ports.scheduler, coherence.caches, coherence, ports.log, most)
    return Changes(writer, rows)


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

"""The ports of a process, and the wiring that masters and workers share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Protocol, TypeVar

from synrepl.core.clock import Scheduler
from synrepl.core.log import Logger
from synrepl.daemon.config.config import Config
from synrepl.daemon.process_bus import ConnectToBus
from synrepl.services.announcing.stream_state import PositionListener
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.coherence.invalidations import Changes, Invalidations
from synrepl.services.federation.interfaces import FederationTransport, RunsInThreads
from synrepl.services.federation.joining.errors import MEMBERSHIP_ERRORS
from synrepl.services.federation.resident.arrivals import ARRIVAL_ERRORS
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.possible_tokens import PossibleTokens
from synrepl.services.forwarding import ForwardsToWriter, NoOtherWriters, WriterActions
from synrepl.services.rooms.client_data.forwarded_errors import CLIENT_DATA_ERRORS
from synrepl.services.rooms.sending.forwarded_errors import FORWARDED_ERRORS
from synrepl.services.sizes import DEFAULT_SIZES, Sizes
from synrepl.services.sources import CatchUpSources, FactSource
from synrepl.services.waiting.applied_positions import AppliedPositions
from synrepl.services.waiting.wait_for import WaitFor
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import Database, DatabaseSession, Statements
from synrepl.storage.incarnations import Incarnations
from synrepl.storage.store import FactStore
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.caches import CACHES
from synrepl.tools.audit.audit import Auditor, sample_caches
from synrepl.tools.audit.missed_rows import MissedRows
from synrepl.tools.audit.settlement import Settlement

T = TypeVar("T")

#: The errors of actions that the process which asked for them gets as they are.
FORWARDABLE_ERRORS = (
    *FORWARDED_ERRORS,
    *CLIENT_DATA_ERRORS,
    *ARRIVAL_ERRORS,
    *MEMBERSHIP_ERRORS,
)


class UntilDone(Protocol):
    """Runs a step of a start, and repeats it while the database is away."""

    def __call__(self, step: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Run the step until it succeeds, and return its result.

        :raises SynreplError: the step failed with an error that waiting does not solve
        """


def unchanged(position_listener: PositionListener) -> PositionListener:
    """Observe nothing: the default of :attr:`Ports.watched`."""
    return position_listener


def no_usage() -> Mapping[str, int]:
    """The usage of a transport that keeps no answers."""
    return {"bytes": 0, "spooled": 0}


@dataclass(frozen=True, slots=True)
class FederationPorts:
    """The ports of a process to other servers.

    :ivar transport: sends requests
    :ivar threads: for signatures
    :ivar usage: shows the bytes of answers so far, and of those that are in files now
    """

    transport: FederationTransport
    threads: RunsInThreads
    usage: Callable[[], Mapping[str, int]] = no_usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of every process: what it needs from its environment.

    :ivar coherence: coherence of the process's caches, already checked
    :ivar until_done: runs the steps of the start
    :ivar connect_bus: makes the connections to Redis; None without ``redis``
    :ivar handlers: the user's handlers
    :ivar actions: what this process does for others
    :ivar forwarder: has other processes do what only they can
    :ivar watched: wraps the listener of announced positions in an observer
    :ivar federation: None for a process that asks no other servers
    :ivar open_session: opens a connection to the database for locks; None without a database
    :ivar plain: reads what is plain for clients; None: that is read like everything else
    """

    scheduler: Scheduler
    log: Logger
    coherence: Coherence
    until_done: UntilDone
    connect_bus: ConnectToBus | None = None
    handlers: Sequence[Subscription] = ()
    watched: Callable[[PositionListener], PositionListener] = unchanged
    sizes: Sizes = DEFAULT_SIZES
    actions: WriterActions = field(default_factory=lambda: WriterActions(FORWARDABLE_ERRORS))
    forwarder: ForwardsToWriter = field(default_factory=NoOtherWriters)
    federation: FederationPorts | None = None
    open_session: Callable[[], Awaitable[DatabaseSession]] | None = None
    plain: Statements | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPorts(Ports):
    """The ports of a worker.

    :ivar store: None for a worker without a database
    :ivar database: for the record of its positions, and for transactional handlers
    :ivar incarnations: incarnations of the database server that the process has met
    :ivar source: where missed facts are fetched
    :ivar catch_up_sources: where handlers get facts from the past; None where nobody has them
    :ivar tokens: knows which tokens can have been issued
    """

    store: FactStore | None
    database: Database | None
    incarnations: Incarnations
    source: FactSource
    catch_up_sources: CatchUpSources | None
    tokens: PossibleTokens


def begin_sampling(ports: Ports, config: Config, auditor: Auditor) -> None:
    """Start the continuous audit of cache entries, if it is configured."""
    audits = config.audit_caches
    if audits.every:
        sampling = sample_caches(ports.scheduler, auditor, audits.every, audits.keys)
        ports.scheduler.spawn("audit caches", sampling)


def changes_of(
    ports: Ports, coherence: Coherence, writer: StreamWriter, own: Sequence[Stream]
) -> Changes | None:
    """The writer of the ``caches`` stream; None if this process does not write it."""
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
    """Make the auditor of a process's caches.

    :param in_memory: whether ``store`` has the in-memory streams, too
    """
    settlement = Settlement(
        scheduler, catalogue, store, own, waiting, has_in_memory_streams=in_memory
    )
    rows = MissedRows(coherence, catalogue, store)
    return Auditor(scheduler, coherence, settlement, rows, log, SystemRandom())

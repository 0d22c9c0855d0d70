"""Masters and workers of the benchmarks, assembled as the daemons assemble them.

Only the ports differ, and the audit of caches is off.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.caches import make_caches
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.caches.registry import Caches
from synrepl.core.tokens import Token
from synrepl.daemon.assemble import (
    MasterServices,
    Ports,
    WorkerPorts,
    WorkerServices,
    assemble_master,
    assemble_worker,
    worker_coherence,
)
from synrepl.daemon.assemble.ports import unchanged
from synrepl.daemon.config.config import (
    AuditCachesConfig,
    ListenerConfig,
    MasterAddress,
    MasterConfig,
    WorkerConfig,
)
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.config.secret import Secret
from synrepl.daemon.process_bus import ConnectToBus
from synrepl.services.announcing.stream_state import PositionListener
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.possible_tokens import PossibleTokens
from synrepl.services.handlers import Handler
from synrepl.storage.incarnations import Incarnations
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.store import FactStore
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Stream

T = TypeVar("T")

#: Never used, because the store is a port.
_DSN = Secret("dbname=none", "dbname=none")

#: The audit of caches would take its share of a measurement.
_NO_AUDIT = AuditCachesConfig(every=0.0)


async def once(step: Callable[[], Awaitable[T]]) -> T:
    """Run a step of a start once; a benchmark fails if the step does."""
    return await step()


def completed(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that does not have to wait."""
    return SynchronousTestCase().successResultOf(Deferred.fromCoroutine(coroutine))


def master_config(server_name: str, *, poll_s: float = 1.0) -> MasterConfig:
    """The configuration of a master with one listener.

    :param poll_s: seconds between two polls of the store
    """
    return MasterConfig(
        server_name=server_name,
        database=_DSN,
        listeners=(ListenerConfig(port=0),),
        poll_interval=poll_s,
        audit_caches=_NO_AUDIT,
    )


def build_master(
    scheduler: TwistedScheduler,
    config: MasterConfig,
    store: FactStore,
    catalogue: Catalogue,
    own: Sequence[Stream],
) -> MasterServices:
    """Build the services of a master without handlers; nothing has started.

    :param own: the streams that it writes
    """
    log = Logger()
    ports = Ports(
        scheduler=scheduler,
        log=log,
        coherence=Coherence(make_caches(), catalogue, log),
        until_done=once,
    )
    return assemble_master(config, ports, store, None, catalogue, own)


def worker_config(
    server_name: str, name: str, *, redis: RedisConfig | None = None, follows: bool = True
) -> WorkerConfig:
    """The configuration of a worker that starts at the current positions.

    :param redis: None for a worker over TCP
    :param follows: whether it follows the streams, or only writes
    """
    return WorkerConfig(
        server_name=server_name,
        instance_name=name,
        database=_DSN,
        master=MasterAddress(port=1),
        redis=redis,
        dialect="modern",
        follow="all" if follows else (),
        starting="now",
        audit_caches=_NO_AUDIT,
    )


def build_worker(
    scheduler: TwistedScheduler,
    config: WorkerConfig,
    catalogue: Catalogue,
    handlers: Sequence[Handler] = (),
    *,
    caches: Caches | None = None,
    store: FactStore | None = None,
    own: Sequence[Stream] = (),
    connect_bus: ConnectToBus | None = None,
    watched: Callable[[PositionListener], PositionListener] = unchanged,
) -> WorkerServices:
    """Build the services of a worker that never has to fetch a fact; nothing has started.

    :param caches: its caches; by default none
    :param store: holds the writer's lease; None for a worker that writes no stream
    :param own: the streams that it writes
    :param watched: see :class:`~synrepl.daemon.assemble.Ports`
    """
    log = Logger()
    caches = make_caches() if caches is None else caches
    source: Any = store  # never asked, because there are no gaps
    ports = WorkerPorts(
        scheduler=scheduler,
        log=log,
        coherence=worker_coherence(config, catalogue, caches, log),
        until_done=once,
        connect_bus=connect_bus,
        handlers=[Subscription(handler) for handler in handlers],
        watched=watched,
        store=store,
        database=None,
        incarnations=Incarnations(),
        source=source,
        catch_up_sources=None,
        tokens=PossibleTokens(scheduler, None, log),
    )
    return assemble_worker(config, ports, catalogue, own)


async def store_at(
    scheduler: TwistedScheduler, stream: Stream, writer: str, position: Token
) -> MemoryStore:
    """A store in memory in which a writer has a recorded position, and its name is free."""
    store = MemoryStore(scheduler)
    store.set_sequence(stream, position)
    lease = await store.open_writer(writer, [stream])
    await store.record_positions(stream, position, {writer: position})
    await lease.close()
    return store

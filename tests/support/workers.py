"""A worker's services, assembled as the daemon assembles them, on what a test gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from synrepl.adapters.caches import make_caches
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.log import Logger
from synrepl.daemon.assemble import WorkerPorts, WorkerServices, assemble_worker
from synrepl.daemon.config.config import AuditCachesConfig, MasterAddress, WorkerConfig
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.config.secret import Secret
from synrepl.daemon.process_bus import ConnectToBus
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.possible_tokens import PossibleTokens
from synrepl.services.sizes import DEFAULT_SIZES, Sizes
from synrepl.services.sources import CatchUpSources, FactSource
from synrepl.storage.database import Database
from synrepl.storage.incarnations import Incarnations
from synrepl.storage.store import FactStore
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Stream
from tests.support.masters import once


def build_worker(
    scheduler: TwistedScheduler,
    catalogue: Catalogue,
    source: FactSource,
    handlers: Sequence[Subscription],
    log: Logger,
    *,
    name: str = "w1",
    dialect: Literal["auto", "modern", "transitional", "legacy"] = "modern",
    earliest: bool = True,
    follows: bool = True,
    store: FactStore | None = None,
    own: Sequence[Stream] = (),
    database: Database | None = None,
    catch_up_sources: CatchUpSources | None = None,
    redis: RedisConfig | None = None,
    connect_bus: ConnectToBus | None = None,
    sizes: Sizes = DEFAULT_SIZES,
) -> WorkerServices:
    """Build the services of a worker of ``example.org``; nothing has started.

    :param source: where missed facts are fetched
    :param earliest: start with the earliest facts if there is no position
    :param follows: whether it follows all streams, or only writes
    :param store: where it writes; None for nowhere
    :param own: the streams that it writes
    :param database: where positions are recorded; None for nowhere
    :param redis: None for a worker over TCP, likewise ``connect_bus``
    """
    config = WorkerConfig(
        server_name="example.org",
        instance_name=name,
        database=Secret("dbname=none", "dbname=none"),
        master=MasterAddress(port=1),
        redis=redis,
        dialect=dialect,
        follow="all" if follows else (),
        starting="earliest" if earliest else "now",
        audit_caches=AuditCachesConfig(every=0.0),
    )
    ports = WorkerPorts(
        scheduler=scheduler,
        log=log,
        coherence=Coherence(make_caches(), catalogue, log),
        until_done=once,
        connect_bus=connect_bus,
        handlers=handlers,
        sizes=sizes,
        store=store,
        database=database,
        incarnations=Incarnations(),
        source=source,
        catch_up_sources=catch_up_sources,
        tokens=PossibleTokens(scheduler, None, log),
    )
    return assemble_worker(config, ports, catalogue, own)

"""Checks the tokens that a worker receives against the tokens that can have been issued."""

from __future__ import annotations

from collections.abc import Iterator

from synrepl.adapters.http.client import HttpClient
from synrepl.adapters.http.positions import HttpPositions
from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.tokens import Token
from synrepl.daemon.config.config import WorkerConfig
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.following.possible_tokens import IssuedTokens, PossibleTokens
from synrepl.services.sources import Key
from synrepl.storage.database import Database
from synrepl.storage.foreign.store import ForeignStore
from synrepl.storage.incarnations import Incarnations
from synrepl.storage.store import FactStore
from synrepl.streams.catalogue import Catalogue

#: Interval at which the worker's own positions are checked, in seconds.
CHECK_INTERVAL_S = 10.0

#: How far beyond the largest known issued token rows may be before it is looked up again. On a
#: Redis without a password, where anybody can publish, the margin is 0.
NEAR_TOKENS = 1_000


def possible_tokens(
    scheduler: Scheduler,
    config: WorkerConfig,
    store: FactStore | None,
    foreign: Database | None,
    master: HttpClient | None,
    log: Logger,
) -> PossibleTokens:
    """The check of received tokens; without a source to ask, it accepts all of them.

    :param foreign: the database of a real Synapse
    :param master: HTTP client of the master, for workers that do not read the database
    """
    is_open = config.redis is not None and config.redis.password is None
    near = 0 if is_open else NEAR_TOKENS
    return PossibleTokens(scheduler, _source(config, store, foreign, master), log, near)


def _source(
    config: WorkerConfig,
    store: FactStore | None,
    foreign: Database | None,
    master: HttpClient | None,
) -> IssuedTokens | None:
    if config.master.foreign:
        return None if foreign is None else ForeignStore(foreign)
    if config.catch_up == "database":
        return store
    return None if master is None else HttpPositions(master)


async def watch_positions(
    scheduler: Scheduler,
    follower: Follower,
    delivery: Delivery,
    catalogue: Catalogue,
    incarnations: Incarnations,
) -> None:
    """Check regularly whether the worker is ahead of its database. Runs forever; to be spawned.

    After a failover, it resubscribes if tokens were refused according to the former server.

    :param incarnations: incarnations of the database server that the process has met
    """
    streams = {stream.name: stream for stream in catalogue}
    newest = incarnations.newest
    while True:
        if incarnations.newest > newest and follower.tokens.refused.total():
            follower.resubscribe()
        newest = incarnations.newest
        try:
            await follower.tokens.check(streams, _positions(delivery))
        except SynreplError as error:
            follower.tokens.log_unchecked(error)
        await scheduler.sleep(CHECK_INTERVAL_S)


def _positions(delivery: Delivery) -> Iterator[tuple[str | None, Key, Token]]:
    own = {**delivery.recorded}
    for key, at in delivery.progress.positions.items():
        own[key] = max(at, own.get(key, 0))
    for key, at in own.items():
        yield None, key, at
    for consumer in delivery.consumers:
        for key, tracker in consumer.trackers.items():
            if tracker.position is not None:
                yield consumer.name, key, tracker.position

"""The sources from which masters and workers fetch missed facts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from synrepl.adapters.http.client import HttpClient
from synrepl.adapters.http.positions import HttpPositions
from synrepl.adapters.http.source import HttpSource
from synrepl.core.tokens import Range
from synrepl.daemon.config.config import WorkerConfig
from synrepl.services.sources import (
    CatchUpSources,
    FactSource,
    PositionSource,
    StorePositions,
    fetchable_in_order,
)
from synrepl.storage.database import Database
from synrepl.storage.foreign.store import ForeignStore
from synrepl.storage.store import FactStore, Page, Trimmed
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Stream

#: See :meth:`synrepl.services.sources.FactSource.page`.
Pages = Callable[[Stream, Range, str | None, int], Awaitable[Page]]


def source_of(
    config: WorkerConfig,
    own: Sequence[Stream],
    store: FactStore | None,
    foreign: Database | None,
    client: HttpClient | None,
) -> FactSource:
    """The source from which a worker fills gaps.

    :param own: the streams that it writes; those in memory are read from ``store``
    :param foreign: the database of a real Synapse
    :param client: HTTP client of the master, for in-memory streams of other processes
    """
    from_master: FactSource = UnreachableSource() if client is None else HttpSource(client)
    others = from_master
    if config.catch_up == "database" and foreign is not None:
        others = RoutedSource(ForeignStore(foreign), from_master)
    elif config.catch_up == "database" and store is not None and not config.master.foreign:
        others = RoutedSource(store, from_master)
    kept = [stream.name for stream in own if stream.in_memory]
    if store is None or not kept:
        return others
    return SplitSource(kept, store.page, others)


def handler_sources(
    catalogue: Catalogue,
    source: FactSource,
    store: FactStore | None,
    client: HttpClient | None,
    *,
    foreign: bool,
    has_foreign_database: bool,
) -> CatchUpSources | None:
    """The sources from which handlers catch up; with a real Synapse, only its database serves."""
    if foreign and not has_foreign_database:
        return None
    positions: PositionSource | None = None
    if not foreign and store is not None:
        positions = StorePositions(store)
    elif not foreign and client is not None:
        positions = HttpPositions(client)
    return CatchUpSources(fetchable_in_order(catalogue, foreign), source, positions)


class RoutedSource:
    """Reads streams with a table from one source, and in-memory streams from another."""

    def __init__(self, tables: FactSource, memory: FactSource) -> None:
        self._tables = tables
        self._memory = memory

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Part of a range; see :class:`~synrepl.services.sources.FactSource`."""
        source = self._memory if stream.in_memory else self._tables
        return await source.page(stream, span, writer, limit)


class UnreachableSource:
    """The source of in-memory streams whose process has no configured address."""

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Report the facts as trimmed, so that handlers learn of the loss.

        :raises Trimmed: always, unless the range is empty
        """
        if span.empty:
            return Page((), span.after, is_limited=False)
        raise Trimmed(stream=stream.name, trimmed=span.upto, after=span.after)


class SplitSource:
    """Reads some streams from one source, and all others from another.

    :param names: names of the streams that ``pages`` serves
    """

    def __init__(self, names: Collection[str], pages: Pages, others: FactSource) -> None:
        self._names = frozenset(names)
        self._pages = pages
        self._others = others

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Part of a range; see :class:`~synrepl.services.sources.FactSource`."""
        if stream.name in self._names:
            return await self._pages(stream, span, writer, limit)
        return await self._others.page(stream, span, writer, limit)

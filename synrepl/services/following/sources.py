"""Sources of facts by range, and of recorded positions, for followers and handlers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from synrepl.core.tokens import Range
from synrepl.storage.store import FactsLost, Observation, Page, RecordedPositions
from synrepl.streams.definition import Stream, numbered_together

#: The writer under which a follower of the linear view keeps its one number per stream.
LINEAR = ""

#: Rows fetched, or handed over, at a time.
PAGE_ROWS = 2_000

#: Stream and writer.
Key = tuple[str, str]


class FactSource(Protocol):
    """Where missing facts are fetched from: the database, or the master over HTTP."""

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Part of a range; see :meth:`synrepl.storage.store.FactStore.page`."""


async def surviving_page(
    source: FactSource, stream: Stream, span: Range, writer: str | None, limit: int
) -> Page:
    """Part of a range, of which a failover may have lost facts; for those who hold none of them.

    :raises SynreplError: as :meth:`FactSource.page`, but not ``FactsLost``
    """
    try:
        return await source.page(stream, span, writer, limit)
    except FactsLost as error:
        within = Range(span.after, error.floor - 1)
        return replace(await source.page(stream, within, writer, limit), limited=True)


class PositionSource(Protocol):
    """Where recorded positions of a stream are read: the database, or the master over HTTP."""

    async def recorded(self, stream: Stream) -> RecordedPositions:
        """The positions on record.

        :raises SynreplError: they cannot be read now
        """


class ObservesStreams(Protocol):
    """See :meth:`synrepl.storage.store.FactStore.observe`."""

    async def observe(self, streams: Sequence[Stream]) -> Mapping[str, Observation]: ...


class StorePositions:
    """Reads recorded positions from the database."""

    def __init__(self, store: ObservesStreams) -> None:
        self._store = store

    async def recorded(self, stream: Stream) -> RecordedPositions:
        """The positions on record."""
        seen = (await self._store.observe([stream]))[stream.name]
        writers = {name: state.position for name, state in seen.writers.items()}
        return RecordedPositions(seen.recorded, writers)


@dataclass(frozen=True, slots=True)
class CatchUpSources:
    """Sources for handlers that are not in a lane.

    :ivar streams: by name, those whose facts can be fetched in order
    :ivar positions: None where handlers can only have the view of the connection
    """

    streams: Mapping[str, Stream]
    source: FactSource
    positions: PositionSource | None = None


def fetchable_in_order(streams: Iterable[Stream], foreign: bool) -> dict[str, Stream]:
    """The streams whose facts can be fetched in order, by name.

    :param foreign: from a real Synapse, which repeats and reorders some
    """
    every = list(streams)
    mixed = numbered_together(every) if foreign else {}
    return {
        stream.name: stream
        for stream in every
        if not stream.in_memory and not (foreign and (stream.unordered or stream.name in mixed))
    }

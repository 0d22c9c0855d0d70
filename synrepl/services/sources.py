"""Sources of facts by range, and of recorded positions, for followers and handlers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from synrepl.core.tokens import Range
from synrepl.storage.store import FactsLost, Observation, Page, RecordedPositions
from synrepl.streams.definition import Stream, numbered_together

#: The writer name under which a follower of the linear view keeps its position in a stream.
LINEAR = ""

#: Rows fetched or delivered at a time.
PAGE_ROWS = 2_000

#: Stream and writer.
Key = tuple[str, str]


class FactSource(Protocol):
    """Fetches missing facts, from the database or from the master over HTTP."""

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Read part of a range; see :meth:`synrepl.storage.store.FactStore.page`."""


async def surviving_page(
    source: FactSource, stream: Stream, span: Range, writer: str | None, limit: int
) -> Page:
    """Read part of a range, skipping facts that a failover has lost.

    For callers that have seen none of the lost facts.

    :raises SynreplError: as :meth:`FactSource.page`, but not ``FactsLost``
    """
    try:
        return await source.page(stream, span, writer, limit)
    except FactsLost as error:
        within = Range(span.after, error.floor - 1)
        return replace(await source.page(stream, within, writer, limit), is_limited=True)


class PositionSource(Protocol):
    """Reads recorded positions of a stream, from the database or from the master over HTTP."""

    async def recorded(self, stream: Stream) -> RecordedPositions:
        """Read the recorded positions.

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
        """Read the recorded positions."""
        seen = (await self._store.observe([stream]))[stream.name]
        writers = {name: state.position for name, state in seen.writers.items()}
        return RecordedPositions(seen.recorded, writers)


@dataclass(frozen=True, slots=True)
class CatchUpSources:
    """Sources from which handlers that are not in a lane catch up.

    :ivar streams: the streams whose facts can be fetched in order, by name
    :ivar positions: None where handlers must take the view of the connection
    """

    streams: Mapping[str, Stream]
    source: FactSource
    positions: PositionSource | None = None


def fetchable_in_order(streams: Iterable[Stream], foreign: bool) -> dict[str, Stream]:
    """The streams whose facts can be fetched in order, by name.

    :param foreign: they come from a real Synapse, which repeats and reorders some rows
    """
    every = list(streams)
    mixed = numbered_together(every) if foreign else {}
    return {
        stream.name: stream
        for stream in every
        if not stream.in_memory and not (foreign and (stream.unordered or stream.name in mixed))
    }

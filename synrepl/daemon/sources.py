"""Where a worker fetches what it missed."""

from __future__ import annotations

from synrepl.core.tokens import Range
from synrepl.services.following.source import Source
from synrepl.storage.store import Page, Trimmed
from synrepl.streams.definition import Stream


class RoutedSource:
    """Streams with a table from one source, streams in memory from another."""

    def __init__(self, tables: Source, memory: Source) -> None:
        self._tables = tables
        self._memory = memory

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Part of a range; see :class:`~synrepl.services.following.source.Source`."""
        source = self._memory if stream.in_memory else self._tables
        return await source.page(stream, span, writer, limit)


class OutOfReach:
    """For streams in another process's memory when nobody said where that process listens."""

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """A follower must be told, or its handlers would take what is gone for nothing at all.

        :raises Trimmed: always, unless nothing is missing
        """
        if span.empty:
            return Page((), span.after, limited=False)
        raise Trimmed(stream=stream.name, trimmed=span.upto, after=span.after)

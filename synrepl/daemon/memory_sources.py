"""Where facts of streams in memory are read: in this process, or in what it has heard of others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from synrepl.core.tokens import Range
from synrepl.services.sources import FactSource
from synrepl.storage.store import Page
from synrepl.streams.definition import Stream

#: See :meth:`synrepl.services.sources.FactSource.page`.
Pages = Callable[[Stream, Range, str | None, int], Awaitable[Page]]


class SomeElsewhere:
    """Some streams from one place, all others from another.

    :param names: of the streams that ``these`` gives
    """

    def __init__(self, names: Collection[str], these: Pages, others: FactSource) -> None:
        self._names = frozenset(names)
        self._these = these
        self._others = others

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Part of a range; see :class:`~synrepl.services.sources.FactSource`."""
        if stream.name in self._names:
            return await self._these(stream, span, writer, limit)
        return await self._others.page(stream, span, writer, limit)

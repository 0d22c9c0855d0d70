"""Pages of a stream that skip trimmed rows, for peers that do not understand that they are gone.

A real worker whose request is refused repeats it for ever. It can do without rows of a stream
that is ephemeral or in memory, so the loss is only logged.
"""

from __future__ import annotations

from synrepl.core.log import Logger
from synrepl.core.tokens import Range
from synrepl.services.sources import FactSource, surviving_page
from synrepl.storage.store import Page, Trimmed
from synrepl.streams.definition import Stream


async def page_skipping_trimmed(
    source: FactSource, stream: Stream, span: Range, limit: int, asker: str, log: Logger
) -> Page:
    """A page of all writers' facts in ``span``, without those that were trimmed.

    :param asker: name of the client, for the log
    :raises Trimmed: facts of the range are gone, and the stream is neither ephemeral nor in memory
    """
    after = span.after
    while True:
        try:
            return await surviving_page(source, stream, Range(after, span.upto), None, limit)
        except Trimmed as error:
            if not (stream.ephemeral or stream.in_memory):
                raise
            gone = min(int(str(error.facts["trimmed"])), span.upto)
            log.warn(
                "{asker} asks for {stream} above {after}, which is trimmed up to {gone}; it misses these facts",
                asker=asker,
                stream=stream.name,
                after=after,
                gone=gone,
            )
            after = gone
            if after == span.upto:
                return Page((), after, is_limited=False)

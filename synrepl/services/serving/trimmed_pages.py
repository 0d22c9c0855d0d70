"""What is left of a fleeting stream, for peers that cannot be told that the rest is gone.

A real worker that is refused asks for the same range again, for ever. What it
has missed of a stream that is ephemeral, or kept in memory, it can do without; it
is only said here.
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
    """A page of all writers' facts in ``span``; of a fleeting stream, of what is left of them.

    :param asker: who asks, for the log
    :raises Trimmed: facts of the range are gone, and the stream is not fleeting
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
                "{asker} asks for {stream} above {after}; up to {gone} it is trimmed, and lost to it",
                asker=asker,
                stream=stream.name,
                after=after,
                gone=gone,
            )
            after = gone
            if after == span.upto:
                return Page((), after, is_limited=False)

"""Checks whether a failover of the database may have lost facts that a query has read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from enum import StrEnum

from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.errors import ReadBeforeFailover
from synrepl.pipeline.source.plan.offset import Offset
from synrepl.pipeline.source.writer_ranges import WriterRanges
from synrepl.storage.store import OlderServer

_log = logging.getLogger(__name__)


class OnFailover(StrEnum):
    """What a query does if facts that it has read may be lost."""

    REFUSE = "refuse"
    WARN = "warn"


def check_failovers(offset: Offset, source: SourceDatabase, on_failover: OnFailover) -> None:
    """Check whether facts at or below an offset may have been lost since it was made.

    Facts above it are never missed: those that survived are still above it, and new tokens are
    higher than any that was allocated before the failover.

    :param source: its streams have been observed
    :raises ReadBeforeFailover: some may be lost, and ``on_failover`` is REFUSE
    :raises OlderServer: the offset was made on a newer server
    """
    if source.incarnation < offset.incarnation:
        raise OlderServer(found=source.incarnation, newest=offset.incarnation)
    if source.incarnation == offset.incarnation:
        return
    found = list(_may_be_lost(offset, source))
    if not found:
        return
    error = ReadBeforeFailover(what="; ".join(found))
    if on_failover is OnFailover.REFUSE:
        raise error
    _log.warning("the database may have lost facts that the query has read: %s", "; ".join(found))


def _may_be_lost(offset: Offset, source: SourceDatabase) -> Iterator[str]:
    for stream, kept in sorted(source.survived_since(offset.incarnation).items()):
        at = offset.streams.get(stream)
        if at is not None and not WriterRanges.between(kept, at).empty:
            yield f"stream {stream!r} above {kept} up to {at}"

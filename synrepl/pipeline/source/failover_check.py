"""Queries whose checkpoint is older than a failover of the database."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from enum import StrEnum

from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.errors import ReadBeforeFailover
from synrepl.pipeline.source.plan.offset import Offset
from synrepl.pipeline.source.writer_ranges import WriterRanges
from synrepl.storage.store import OlderServer

_log = logging.getLogger(__name__)


class OnFailover(StrEnum):
    """What a query does when facts that it has read may be lost."""

    REFUSE = "refuse"
    WARN = "warn"


class ReadFactsLost(UserWarning):
    """The database may have lost facts in a failover that a query has read."""


def check_failovers(offset: Offset, source: SourceDatabase, on_failover: OnFailover) -> None:
    """Find out whether facts before an offset may be lost since it was made.

    Nothing above it is missed, however that ends: whatever has survived is still above it, and
    tokens go on higher than any that was given out.

    :param source: its streams were looked at
    :raises ReadBeforeFailover: some may be, and nobody has said to go on
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
    words = f"the database may have lost facts that the query has read: {'; '.join(found)}"
    _log.warning("%s", words)
    warnings.warn(words, ReadFactsLost, stacklevel=2)


def _may_be_lost(offset: Offset, source: SourceDatabase) -> Iterator[str]:
    for stream, kept in sorted(source.survived_since(offset.incarnation).items()):
        at = offset.streams.get(stream)
        if at is not None and not WriterRanges.between(kept, at).empty:
            yield f"stream {stream!r} above {kept} up to {at}"

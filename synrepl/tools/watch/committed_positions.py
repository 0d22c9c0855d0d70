"""Reads the committed positions of a real server's streams from its database."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from synrepl.storage.foreign.progress import NEWEST_ROWS
from synrepl.storage.foreign.store import ForeignStore
from synrepl.streams.definition import numbered_together
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.tools.doctor import foreign_snapshot
from synrepl.tools.doctor.foreign_snapshot import ForeignSnapshot
from synrepl.tools.watch.lag_monitor import Committed

_TOGETHER = numbered_together(SYNAPSE_STREAMS)


@dataclass(frozen=True, slots=True)
class CommittedPositions:
    """The committed positions, read at one moment.

    :ivar positions: the positions that have to be announced, by stream and writer
    :ivar streams_with_writers: the streams whose writers are recorded in the database
    :ivar unread: sentences about the streams that could not be read, and why
    """

    positions: Committed
    streams_with_writers: Collection[str]
    unread: tuple[str, ...]


async def read(store: ForeignStore, announces_moves: bool) -> CommittedPositions:
    """Read the committed positions once.

    :param announces_moves: whether writers announce positions that moved without rows, as they do
        over Redis; otherwise only rows have to be announced
    :raises SynreplError: any error of :class:`.ForeignStore`
    """
    release = await store.release()
    seen = await store.read(
        "watch", lambda txn: foreign_snapshot.take_snapshot(txn, release, NEWEST_ROWS)
    )
    positions = {}
    for name, stream in seen.streams.items():
        # The recorded position of a stream that shares its sequence also moves with rows of the other.
        shared = _TOGETHER.get(name, frozenset()) & seen.streams.keys()
        only_rows = len(shared) > 1 or not announces_moves
        positions[name] = stream.row_positions if only_rows else stream.positions
    streams_with_writers = [name for name, stream in seen.streams.items() if stream.recorded]
    return CommittedPositions(positions, streams_with_writers, tuple(_unread(seen)))


def _unread(seen: ForeignSnapshot) -> Iterator[str]:
    release = seen.release
    for stream, what in release.unreadable.items():
        yield f"this user may not read {what}, so the committed position of {stream} is not known"
    for stream, missing in release.unknown.items():
        yield f"this release lacks {missing}, so the committed position of {stream} is not known"
    for session in seen.sessions.values():
        streams = seen.locked_by(session)
        if streams:
            yield (
                f"nobody can read table {', '.join(session.locked)}, so how far"
                f" {', '.join(streams)} is in the database is not known: {session.description}"
            )

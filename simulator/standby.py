"""An asynchronous standby: the simulated database as it was when replication stopped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from simulator.follower_database import FollowerRecords, FollowerRecordStore
from simulator.watched_stream import WatchedStream
from synrepl.core.tokens import Token


@dataclass(frozen=True, slots=True)
class _StreamCopy:
    """A copy of one stream.

    :ivar writers: epoch, position, and whether a process had taken the name
    """

    tokens: frozenset[Token]
    last: Token
    recorded: Token
    incarnation: int
    floor: Token
    losses: int
    writers: Mapping[str, tuple[int, Token, bool]]


class Standby:
    """The data of a standby: facts, positions, and recorded positions of followers.

    :param streams: all streams, by name
    """

    def __init__(self, streams: Mapping[str, WatchedStream], store: FollowerRecordStore) -> None:
        self._confirmed = store.server.incarnation, store.server.confirmed_timeline
        self._streams = {name: _copy(watched) for name, watched in streams.items()}
        self._records = {name: records.copy() for name, records in store.records.items()}

    def promote(
        self, streams: Mapping[str, WatchedStream], store: FollowerRecordStore, ahead: int
    ) -> None:
        """Promote the standby: reset the database to its data.

        :param ahead: number of tokens by which each sequence was logged ahead
        """
        store.server.incarnation, store.server.confirmed_timeline = self._confirmed
        store.server.promote()
        store.records = dict[str, FollowerRecords](self._records)
        for name, watched in streams.items():
            copy = self._streams.get(name, _NOTHING)
            watched.restore(copy.tokens, min(copy.last + ahead, watched.last))
            watched.recorded = copy.recorded
            watched.incarnation, watched.floor = copy.incarnation, copy.floor
            del watched.losses[copy.losses :]
            for writer, state in watched.writers.items():
                epoch, state.position, state.held = copy.writers.get(writer, (0, 0, False))
                state.epoch = epoch
                state.session = None


_NOTHING = _StreamCopy(frozenset(), 0, 0, 1, 0, 0, {})


def _copy(watched: WatchedStream) -> _StreamCopy:
    return _StreamCopy(
        watched.tokens,
        watched.last,
        watched.recorded,
        watched.incarnation,
        watched.floor,
        len(watched.losses),
        {name: (w.epoch, w.position, w.held) for name, w in watched.writers.items()},
    )


def lost_since(
    streams: Mapping[str, WatchedStream], number: int
) -> list[tuple[str, str, Token, Token]]:
    """Rows of :data:`~synrepl.storage.incarnations.LOST_SINCE`."""
    found: dict[tuple[str, str], tuple[Token, Token]] = {}
    for name, watched in streams.items():
        for incarnation, floor, kept_of in watched.losses:
            if incarnation > number:
                for writer, store in kept_of.items():
                    least, most = found.get((name, writer), (store, floor))
                    found[name, writer] = min(least, store), max(most, floor)
    return [(*key, *span) for key, span in found.items()]


def proofs(store: FollowerRecordStore, stream: str) -> Iterable[tuple[str, Token]]:
    """Yield writers and positions of a stream that recorded positions of followers prove to exist."""
    for records in store.records.values():
        for (of, writer), position in records.positions().items():
            if of == stream:
                yield writer, position
        for (_, of, writer), at in records.handlers.items():
            if of == stream and at.position != at.started_from:
                yield writer, at.position

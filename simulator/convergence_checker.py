"""Checks that the deployment converges once faults have stopped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from simulator.actors import (
    Actor,
    FollowerActor,
    MasterActor,
    WriterActor,
    writing,
)
from simulator.interfaces import Key
from simulator.truth import ALL, Truth
from simulator.workload import CATALOGUE
from synrepl.core.tokens import Token


class ConvergenceChecker:
    """Compares all positions with what was committed.

    :param removed: the removed writers by stream, whose facts may be gone
    """

    def __init__(
        self,
        truth: Truth,
        master: MasterActor,
        writers: Sequence[WriterActor],
        followers: Sequence[FollowerActor],
        removed: Callable[[], Collection[Key]],
    ) -> None:
        self._truth = truth
        self._master = master
        self._writers = writers
        self._followers = followers
        self._removed = removed

    def problems(self) -> Iterator[str]:
        """Yield what has not converged, as sentences."""
        actors: list[Actor] = [self._master, *self._writers, *self._followers]
        for actor in actors:
            if not actor.ready and not actor.retired:
                yield f"{actor.name} has not started"
        at = self._master.positions
        for key, position in self._truth.published.items():
            if at.get(key, 0) < position and not self._announces_itself(key):
                yield f"{key} is at {at.get(key, 0)}, but was published at {position} before"
        for stream in CATALOGUE:
            linear = at.get((stream.name, ALL), 0)
            if linear < self._truth.last(stream.name):
                yield f"the linear position of {stream.name} is {linear}, below a committed fact"
            for follower in self._followers:
                yield from self._behind(follower, stream.name, at)

    def _announces_itself(self, key: Key) -> bool:
        """On the bus a writer itself announces tokens without facts, which the master cannot know."""
        return self._master.bus and key[1] not in (ALL, self._master.name)

    def _behind(
        self, follower: FollowerActor, stream: str, at: Mapping[Key, Token]
    ) -> Iterator[str]:
        applied = follower.positions
        writers = [ALL] if follower.kind.legacy else [w for s, w in at if s == stream and w != ALL]
        for writer in writers:
            key = stream, writer
            last = self._truth.last(*key)
            if at.get(key, 0) < last:
                yield f"{writer or 'the linear view'} of {stream} is not published up to {last}"
            announced = self._announced_position(key) if follower.bus else at.get(key, 0)
            is_there = (
                applied.get(key, 0) >= announced
                if follower.bus
                else applied.get(key, 0) == announced
            )
            if not is_there and key not in self._removed():
                yield (
                    f"{follower.name} is at {applied.get(key)} of {stream} by {writer or 'all'},"
                    f" which is at {announced}"
                )
        yield from follower.missing(stream, [w for s, w in at if s == stream])

    def _announced_position(self, key: Key) -> Token:
        """The position of a writer as it announces it; as the master does, if it is down."""
        for actor in writing(self._master, self._writers, self._followers):
            if actor.name == key[1] and actor.ready and actor.writer is not None:
                return actor.writer.positions()[key]
        return self._master.positions.get(key, 0)

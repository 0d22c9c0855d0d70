"""The lag of named followers, from their positions on record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from synrepl.core.tokens import Token
from synrepl.services.sources import LINEAR, Key
from synrepl.storage.store import NamedFollower
from synrepl.streams.definition import ALL_GENERATIONS
from synrepl.streams.synapse import SYNAPSE_STREAMS

#: Streams that some listeners do not announce, so a follower may rightly have no position there.
_NOT_ALWAYS_ANNOUNCED = frozenset(
    stream.name for stream in SYNAPSE_STREAMS if stream.generations != ALL_GENERATIONS
)


class StreamPositions(NamedTuple):
    """The positions of a stream.

    :ivar linear: its linear position
    :ivar writers: the position of each writer
    :ivar trimmed: the last trimmed token
    :ivar floor: the token at which it continued after the last failover
    :ivar kept: by writer, the token up to which facts are proved to have survived that failover,
        where it is known; between it and the floor there are hardly any facts
    """

    linear: Token
    writers: Mapping[str, Token]
    trimmed: Token = 0
    floor: Token = 0
    kept: Mapping[str, Token] = MappingProxyType({})

    def of(self, writer: str) -> Token:
        """The position of a writer, or the linear one; 0 for an unknown writer."""
        return self.linear if writer == LINEAR else self.writers.get(writer, 0)

    def tokens(self, writer: str, after: Token, upto: Token) -> int:
        """Number of tokens above ``after`` up to ``upto`` that may have facts."""
        after = max(after, self.trimmed)
        if after < self.floor <= upto:
            return max(self.kept.get(writer, 0) - after, 1) + upto - self.floor
        return max(0, upto - after)


class FollowerLag(NamedTuple):
    """The lag of a follower behind one writer of a stream, or behind the linear position.

    :ivar position: its position on record; None if it has none in this stream
    :ivar known: the position of the writer
    :ivar tokens: the lag, as a number of tokens; without a position, all tokens that are left
    :ivar handlers: the handlers that hold the follower at its position
    """

    stream: str
    writer: str
    position: Token | None
    known: Token
    tokens: int
    handlers: tuple[str, ...] = ()


def follower_lags(
    follower: NamedFollower, streams: Mapping[str, StreamPositions]
) -> Iterator[FollowerLag]:
    """The lag of a follower behind each writer of its streams, by stream.

    :param streams: by name; other streams are left out
    """
    at_least = _positions(follower)
    for name, stream in streams.items():
        keys = [key for key in at_least if key[0] == name]
        if (name, LINEAR) in keys and len(keys) == 1:
            yield _lag(follower, (name, LINEAR), at_least[name, LINEAR], stream)
        elif keys:
            linear = at_least.get((name, LINEAR), 0)
            for writer in stream.writers:
                at = max(linear, at_least.get((name, writer), 0))
                yield _lag(follower, (name, writer), at, stream)
        elif _expected(follower, name, bool(at_least)):
            known = max(stream.linear, *stream.writers.values(), 0)
            yield FollowerLag(name, LINEAR, None, known, stream.tokens(LINEAR, 0, known))


def _lag(follower: NamedFollower, key: Key, at: Token, stream: StreamPositions) -> FollowerLag:
    known = stream.of(key[1])
    held_by = sorted(
        handler
        for (handler, *of), position in follower.handlers.items()
        if tuple(of) == key and position == at
    )
    # A failover gives a position even to writers that have never written.
    stream = stream if at else stream._replace(kept={})
    return FollowerLag(*key, at, known, stream.tokens(key[1], at, known), tuple(held_by))


def _positions(follower: NamedFollower) -> dict[Key, Token]:
    """The positions of a follower, or of its handlers where it has none yet.

    All configured handlers have reached the follower's own position. So a handler on record below
    it is no longer configured.
    """
    found = dict(follower.positions)
    for (_, *of), position in follower.handlers.items():
        key = of[0], of[1]
        if key not in follower.positions and not any(
            stream == key[0] for stream, _ in follower.positions
        ):
            found[key] = min(position, found.get(key, position))
    return found


def _expected(follower: NamedFollower, stream: str, has_begun: bool) -> bool:
    """Whether a follower without a position in a stream should have one."""
    if follower.lease_s is None:
        return False
    if follower.streams is not None and stream not in follower.streams:
        return False
    return not has_begun or stream not in _NOT_ALWAYS_ANNOUNCED

"""How far this process has applied each writer's facts, and what holds it back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from synrepl.core.errors import InputError
from synrepl.core.tokens import Token
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.announcing.stream_state import StreamState
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.sources import LINEAR, Key
from synrepl.services.status.stream_progress import held_by, last_reserved
from synrepl.services.writing.stream_writer import StreamWriter


class NameAWriter(InputError):
    """this process follows the writers of {stream!r} one by one, and has heard of {known}: name the one to wait for"""


class NotFollowed(InputError):
    """this process does not follow stream {stream!r}: ask the master, or a worker that follows it"""


class AppliedPositions(Protocol):
    """The positions of a process that callers can wait for."""

    def keys(self, stream: str, writer: str | None) -> Sequence[Key]:
        """The positions that show how far a writer's facts are applied, the most specific first.

        When one of them is at or above a token, every fact of the writer up to that token has
        been applied.

        :param writer: None for the position of all writers of the stream
        :raises InputError: there is no such position
        """

    def position(self, key: Key) -> Token:
        """The position; 0 while unknown."""

    def why_below(self, key: Key, token: Token) -> str:
        """Why a position is below ``token``, as text."""


class MasterPositions:
    """A master's positions: one per writer, and the linear one, which covers all writers.

    :param writer: the writer of this process
    """

    def __init__(self, announcer: Announcer, writer: StreamWriter) -> None:
        self._announcer = announcer
        self._writer = writer

    def keys(self, stream: str, writer: str | None) -> Sequence[Key]:
        """The writer's position and the linear one, which also passes rolled-back tokens."""
        linear = (stream, LINEAR)
        return [linear] if writer is None else [(stream, writer), linear]

    def position(self, key: Key) -> Token:
        """The current position."""
        stream, writer = key
        state = self._announcer.states[stream]
        return state.linear if writer == LINEAR else state.positions.get(writer, 0)

    def why_below(self, key: Key, token: Token) -> str:
        """Who holds unsettled reservations, as of the last look at the database."""
        stream, writer = key
        state = self._announcer.states[stream]
        last = last_reserved(state, self._writer)
        if token > last:
            return f"nobody has taken that token yet, the last one taken is {last}"
        if self._announcer.last_error is not None:
            return f"the streams cannot be looked at: {self._announcer.last_error}"
        holders = _holders(state)
        of_writer = [text for name, text in holders if name == writer]
        found = of_writer or [text for _, text in holders]
        if found:
            others = f", and {len(found) - 1} more" if len(found) > 1 else ""
            return f"held by {found[0]}{others}"
        if self._holds(stream, token):
            own = f"this process's own writer {self._writer.writer!r}"
            return f"held by {own}, which has not settled what it reserved"
        return "nobody seems to hold it; the next look at the database will tell"

    def _holds(self, stream: str, token: Token) -> bool:
        try:
            return self._writer.ledger(stream).floor < token
        except KeyError:  # it does not write this stream
            return False


class FollowerPositions:
    """A follower's positions in the streams of its catalogue.

    :param connected: returns whether there is a connection to the master
    :param streams: names of the streams it follows; None for all
    :param linear: it follows the linear view, which has one position per stream for all writers
    """

    def __init__(
        self,
        follower: Follower,
        delivery: Delivery,
        connected: Callable[[], bool],
        streams: Collection[str] | None,
        linear: bool,
    ) -> None:
        self._follower = follower
        self._delivery = delivery
        self._connected = connected
        self._streams = streams
        self._linear = linear

    def keys(self, stream: str, writer: str | None) -> Sequence[Key]:
        """The linear position, or the writer's.

        :raises NameAWriter: the stream may have several writers
        :raises NotFollowed: the stream is not followed here
        """
        if self._streams is not None and stream not in self._streams:
            raise NotFollowed(stream=stream)
        if self._linear:
            return [(stream, LINEAR)]
        if writer is None:
            writer = self._only_writer(stream)
        return [(stream, writer)]

    def position(self, key: Key) -> Token:
        """The position that all handlers have reached."""
        return self._delivery.progress.position(key) or 0

    def why_below(self, key: Key, token: Token) -> str:
        """What the master has announced, and which handlers are behind it."""
        announced = self._follower.announced.get(key, 0)
        away = "" if self._connected() else "; there is no connection to the master now"
        if announced < token:
            return f"the master has announced it only up to {announced}{away}"
        behind = self._delivery.progress.held_by(key)
        reason = "it is being fetched or handled here" if behind is None else behind
        return f"the master has announced it up to {announced}, and {reason}{away}"

    def _only_writer(self, stream: str) -> str:
        known = sorted(writer for name, writer in self._follower.announced if name == stream)
        if len(known) != 1:
            listed = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
            raise NameAWriter(stream=stream, known=listed or "none yet")
        return known[0]


def _holders(state: StreamState) -> list[tuple[str, str]]:
    """The writers that hold back the linear position, each with a description of how."""
    found: list[tuple[str, str]] = []
    for writer, seen in held_by(state).items():
        dead = "it is dead, and about to be fenced off"
        for how in [holder.description for holder in seen.holders] or [dead]:
            found.append((writer, f"writer {writer!r} ({how})"))
    return found

"""Refuses tokens that the database cannot have given out, wherever they come from.

Otherwise, anybody who can publish on the Redis or answer in place of the master could move a
follower beyond its database for good: facts with tokens given out later would pass for duplicates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from synrepl.core.clock import Scheduler
from synrepl.core.errors import Refused, SynreplError
from synrepl.core.log import Logger
from synrepl.core.tokens import MAX_TOKEN, Token
from synrepl.services.sources import LINEAR, Key
from synrepl.streams.definition import Stream

#: Seconds for which ``/ready`` warns of a refusal.
WARN_FOR_S = 600.0

#: Maximum number of (stream, writer) pairs whose refusals are logged; names come from the peer.
MAX_LOGGED = 100

#: Minimum time between two lookups of a stream, in seconds; tokens that come faster share one.
LOOK_EVERY_S = 0.005

#: How long to wait for a source that learns of tokens late, and how often at most, in seconds.
_LATE_S = 1.5
_WAIT_EVERY_S = 10.0


class ImpossibleToken(Refused):
    """token {token} of writer {writer!r} in stream {stream!r} cannot have been given out, the last one was {bound}: ignored, the position stays {position}; the sender is not a process of this server, so protect the Redis or port by a password or a firewall"""


class IssuedTokens(Protocol):
    """Looks up the tokens that the database has given out.

    :ivar is_late: it may learn of a token after followers have received the fact
    """

    is_late: bool

    async def given_out(self, stream: Stream) -> Token | None:
        """The largest token that can have been given out; None where that is unknown.

        :raises SynreplError: it cannot be looked up now
        """


@dataclass(frozen=True, slots=True)
class RefusedToken:
    """A refused token.

    :ivar bound: the largest token that can have been given out
    :ivar at: when it was refused, in seconds by the clock of the process
    """

    stream: str
    writer: str
    token: Token
    bound: Token
    at: float


@dataclass(frozen=True, slots=True)
class PositionAheadOfDatabase:
    """A recorded position above the largest token that was given out.

    :ivar handler: the handler that has it; None for the follower itself
    :ivar bound: the largest token that can have been given out
    """

    stream: str
    writer: str
    handler: str | None
    position: Token
    bound: Token

    def __str__(self) -> str:
        of = "" if self.writer == LINEAR else f" of {self.writer}"
        who = "" if self.handler is None else f" (handler {self.handler})"
        return (
            f"the position in {self.stream}{of}{who} is {self.position}, and only {self.bound} has"
            " been given out: what comes up to there would pass for known; stop this worker and use"
            " 'synrepl followers reset'"
        )


class PossibleTokens:
    """Keeps the largest token known to have been given out, by stream.

    Checking a token up to there costs a comparison. A larger one needs a lookup, which serves all
    tokens that have arrived by then. Where only processes of this server can send anything, rows
    slightly above the known token are accepted, so that one lookup serves many of them; positions
    never are.

    :param source: None where nothing can be looked up; then every token is possible
    :param near: how far above the known token a row may be
    :ivar refused: number of refused tokens, by stream
    :ivar last_refused: the last refused token
    :ivar ahead: recorded positions of this follower above the largest token given out
    """

    def __init__(
        self, scheduler: Scheduler, source: IssuedTokens | None, log: Logger, near: int = 0
    ) -> None:
        self._scheduler = scheduler
        self._source = source
        self._log = log
        self._near = near
        self._known: dict[str, Token] = {}
        self._looked_at: dict[str, float] = {}
        self._logged: set[Key] = set()
        self._waited_at: float | None = None
        self.refused: Counter[str] = Counter()
        self.last_refused: RefusedToken | None = None
        self.ahead: tuple[PositionAheadOfDatabase, ...] = ()

    def known(self, stream: Stream) -> Token:
        """Tokens up to here are known to be possible; in streams in memory, all are."""
        if self._source is None or stream.in_memory:
            return MAX_TOKEN
        return self._known.get(stream.name, 0)

    def accepted(self, stream: Stream) -> Token:
        """Rows up to this token are accepted without a lookup."""
        return self.known(stream) + self._near

    async def look_up(self, stream: Stream, token: Token) -> None:
        """Look up what was given out, because of a token above the known one.

        :raises SynreplError: it cannot be looked up now
        """
        pause = self._looked_at.get(stream.name, 0.0) + LOOK_EVERY_S - self._scheduler.seconds()
        if pause > 0:
            await self._scheduler.sleep(pause)
            if token <= self.known(stream):
                return
        bound = await self._look(stream)
        if token > bound and self._may_learn_late():
            await self._scheduler.sleep(_LATE_S)
            await self._look(stream)

    def refuse(self, stream: Stream, writer: str, token: Token, position: Token | None) -> None:
        """Count a token that cannot have been given out, and log the first one of each writer.

        :param position: position of the follower, for the log
        """
        name, now = stream.name, self._scheduler.seconds()
        bound = self._known.get(name, 0)
        self.refused[name] += 1
        self.last_refused = RefusedToken(name, writer, token, bound, now)
        if (name, writer) in self._logged or len(self._logged) >= MAX_LOGGED:
            return
        self._logged.add((name, writer))
        error = ImpossibleToken(
            token=token,
            writer=writer or "(all)",
            stream=name,
            bound=bound,
            position="unknown" if position is None else position,
        )
        self._log.warn("{error}", error=error)

    async def check(
        self,
        streams: Mapping[str, Stream],
        positions: Iterable[tuple[str | None, Key, Token]],
    ) -> None:
        """Check whether recorded positions of this follower are above what was given out.

        :param streams: by name; positions in other streams are skipped
        :param positions: handler (None for the follower itself), stream and writer, and token
        :raises SynreplError: it cannot be looked up now
        """
        beyond = [
            (handler, key, at)
            for handler, key, at in positions
            if key[0] in streams and at > self.known(streams[key[0]])
        ]
        for stream in {key[0] for _, key, _ in beyond}:
            await self._look(streams[stream])
        logged = {str(position) for position in self.ahead}
        self.ahead = tuple(
            PositionAheadOfDatabase(*key, handler, at, self._known[key[0]])
            for handler, key, at in beyond
            if at > self.known(streams[key[0]])
        )
        for position in self.ahead:
            if str(position) not in logged:
                self._log.warn("{ahead}", ahead=position)

    def log_unchecked(self, error: SynreplError) -> None:
        """Log that the tokens could not be looked up."""
        self._log.warn("cannot look up which tokens were given out: {error}", error=error)

    def to_json(self) -> dict[str, Any]:
        """``{"refused", "last_refused", "ahead"}``."""
        last = self.last_refused
        return {
            "refused": dict(self.refused),
            "last_refused": None
            if last is None
            else {
                "stream": last.stream,
                "writer": last.writer,
                "token": last.token,
                "given_out": last.bound,
                "ago_s": round(max(0.0, self._scheduler.seconds() - last.at), 3),
            },
            "ahead": [str(position) for position in self.ahead],
        }

    # -- inside -----------------------------------------------------------------------

    async def _look(self, stream: Stream) -> Token:
        assert self._source is not None
        self._looked_at[stream.name] = self._scheduler.seconds()
        found = await self._source.given_out(stream)
        bound = MAX_TOKEN if found is None else max(found, self.known(stream))
        self._known[stream.name] = bound
        return bound

    def _may_learn_late(self) -> bool:
        """Whether to wait for a late source; rarely, as forged tokens could hold up the lane with it."""
        if self._source is None or not self._source.is_late:
            return False
        now = self._scheduler.seconds()
        if self._waited_at is not None and now - self._waited_at < _WAIT_EVERY_S:
            return False
        self._waited_at = now
        return True


def none_refused(tokens: PossibleTokens, now: Callable[[], float]) -> Callable[[], str | None]:
    """A check for ``/ready``: no token was refused lately."""

    def check() -> str | None:
        last = tokens.last_refused
        if last is None or now() - last.at > WARN_FOR_S:
            return None
        return (
            f"{sum(tokens.refused.values())} tokens were refused that cannot have been given out, the"
            f" last one {last.token} in {last.stream}, where {last.bound} has been: others can publish"
            " on the Redis, or answer for the master"
        )

    return check


def not_ahead(tokens: PossibleTokens) -> Callable[[], str | None]:
    """A check for ``/ready``: no recorded position is above what was given out."""

    def check() -> str | None:
        more = len(tokens.ahead) - 1
        if more < 0:
            return None
        return str(tokens.ahead[0]) + (f" (and {more} more positions)" if more else "")

    return check

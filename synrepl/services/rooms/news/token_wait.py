"""Waits for what a client has seen, or written, through another process."""

from __future__ import annotations

from typing import Protocol

from synrepl.core.clock import Clock
from synrepl.core.errors import InputError, Unavailable
from synrepl.core.tokens import Token
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.following.possible_tokens import PossibleTokens
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.sync_token import SYNC_STREAMS, SyncToken
from synrepl.services.status.stream_progress import last_reserved
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.streams.definition import Stream

#: How long a client is made to wait for facts that it has seen or written elsewhere, in seconds.
COVER_S = 10.0

_STREAMS = {stream.name: stream for stream in SYNC_STREAMS}


class SyncTokenFromFuture(InputError):
    """the sync token has position {wanted} of {stream!r}, which was never given out: sync again without 'since'"""


class NotYetApplied(Unavailable):
    """this process lacks what the client has seen of {stream!r}, up to token {wanted} of {writer!r}: try again, or ask another process"""


class GivenOutTokens(Protocol):
    """Knows which tokens were given out."""

    async def was_given_out(self, stream: Stream, token: Token) -> bool:
        """Whether a token can have been given out.

        :raises SynreplError: that cannot be looked up now
        """


class MasterGivenOut:
    """The tokens that a master has given out, or seen in the database."""

    def __init__(self, announcer: Announcer, writer: StreamWriter) -> None:
        self._announcer = announcer
        self._writer = writer

    async def was_given_out(self, stream: Stream, token: Token) -> bool:
        """Whether it is at or below the last one, as of the last poll."""
        state = self._announcer.states.get(stream.name)
        return state is not None and token <= last_reserved(state, self._writer)


class WorkerGivenOut:
    """The tokens that a worker's source knows to be given out."""

    def __init__(self, tokens: PossibleTokens) -> None:
        self._tokens = tokens

    async def was_given_out(self, stream: Stream, token: Token) -> bool:
        """Whether it is at or below the last one, which is looked up if need be."""
        if token > self._tokens.known(stream):
            await self._tokens.look_up(stream, token)
        return token <= self._tokens.known(stream)


class TokenWait:
    """Has a client wait until this process has applied what it knows of.

    :ivar timeout_s: the longest wait, in seconds
    """

    def __init__(
        self,
        clock: Clock,
        applied: AppliedVectors,
        given_out: GivenOutTokens,
        timeout_s: float = COVER_S,
    ) -> None:
        self._clock = clock
        self._applied = applied
        self._given_out = given_out
        self.timeout_s = timeout_s

    async def until_covered(self, token: SyncToken) -> None:
        """Wait until everything that a token covers is applied here. It may be cancelled.

        :raises SyncTokenFromFuture: no process can have made this token
        :raises NotYetApplied: this process is behind for too long
        :raises Unavailable: too many clients wait already, or the process stops
        """
        until = self._clock.seconds() + self.timeout_s
        while True:
            # One at a time: usually one writer is missing, and the others arrive meanwhile.
            missing = next(self._applied.missing(token), None)
            if missing is None:
                return
            left = until - self._clock.seconds()
            if left <= 0 or not await self._applied.wait(*missing, left):
                stream, writer, wanted = missing
                if not await self._given_out.was_given_out(_STREAMS[stream], wanted):
                    raise SyncTokenFromFuture(stream=stream, wanted=wanted)
                raise NotYetApplied(stream=stream, writer=writer or "all writers", wanted=wanted)

"""Waits for what a client has seen, or written, through another process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from synrepl.core.clock import Clock
from synrepl.core.errors import InputError, Unavailable
from synrepl.core.tokens import Range, Token
from synrepl.positions.vector import PositionVector
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.following.possible_tokens import PossibleTokens
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.sync_token import SYNC_STREAMS, SyncToken
from synrepl.services.sources import LINEAR
from synrepl.services.status.stream_progress import last_reserved
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.store import FactStore
from synrepl.streams.definition import Stream

#: How long a client is made to wait for facts that it has seen or written elsewhere, in seconds.
COVER_S = 10.0

_STREAMS = {stream.name: stream for stream in SYNC_STREAMS}


class SyncTokenFromFuture(InputError):
    """the sync token has position {wanted} of {stream!r}, which was never given out: sync again without 'since'"""


class NotYetApplied(Unavailable):
    """this process lacks what the client has seen of {stream!r}, up to token {wanted} of {writer!r}: try again, or ask another process"""


class GivenOutTokens(Protocol):
    """Knows which tokens were given out, and to whom."""

    async def was_given_out(self, stream: Stream, token: Token) -> bool:
        """Whether a token can have been given out.

        :raises SynreplError: that cannot be looked up now
        """

    async def last_in(self, stream: Stream, span: Range) -> Mapping[str, Token]:
        """The positions that cover a range: the last token in it, by writer. ``""`` stands for all writers.

        All tokens of the range are settled.

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

    async def last_in(self, stream: Stream, span: Range) -> Mapping[str, Token]:
        """The linear position, which a master knows by itself."""
        return {LINEAR: span.upto}


class WorkerGivenOut:
    """The tokens that a worker's source knows to be given out.

    :param store: None for a worker that has nothing to tell clients
    """

    def __init__(self, tokens: PossibleTokens, store: FactStore | None) -> None:
        self._tokens = tokens
        self._store = store

    async def was_given_out(self, stream: Stream, token: Token) -> bool:
        """Whether it is at or below the last one, which is looked up if need be."""
        if token > self._tokens.known(stream):
            await self._tokens.look_up(stream, token)
        return token <= self._tokens.known(stream)

    async def last_in(self, stream: Stream, span: Range) -> Mapping[str, Token]:
        """The last tokens in the table: a worker knows the linear position late."""
        assert self._store is not None
        return await self._store.reached(stream, span)


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
        try:
            await self.until_reached(dict(self._applied.behind(token)), self.timeout_s)
        except NotYetApplied as error:
            stream, wanted = str(error.facts["stream"]), int(str(error.facts["wanted"]))
            if await self._given_out.was_given_out(_STREAMS[stream], wanted):
                raise
            raise SyncTokenFromFuture(stream=stream, wanted=wanted) from None

    async def until_reached(
        self, positions: Mapping[str, PositionVector], timeout_s: float
    ) -> None:
        """Wait until everything is applied here that positions cover.

        :param positions: by the name of the stream
        :raises NotYetApplied: this process is behind for too long
        :raises Unavailable: too many clients wait already, or the process stops
        """
        until = self._clock.seconds() + timeout_s
        for stream, wanted in positions.items():
            await self._until_linear(stream, wanted.linear, until)
            for writer, at in wanted.writers.items():
                await self._until_reached(stream, writer, at, until)

    async def _until_linear(self, stream: str, token: Token, until: float) -> None:
        """Wait for a linear position: for each writer that has something up to there."""
        applied = self._applied
        if applied.has_reached(stream, LINEAR, token):
            return
        # Before that, the token may be one that nobody has given out.
        while not applied.has_heard_of(stream, token):
            await self._wait(
                applied.wait_to_hear_of, (stream, token), (stream, LINEAR, token), until
            )
        span = Range(applied.linear(stream), token)
        for writer, last in (await self._given_out.last_in(_STREAMS[stream], span)).items():
            await self._until_reached(stream, writer, last, until)

    async def _until_reached(self, stream: str, writer: str, token: Token, until: float) -> None:
        applied, wanted = self._applied, (stream, writer, token)
        while not applied.has_reached(*wanted):
            await self._wait(applied.wait, wanted, wanted, until)

    async def _wait(
        self,
        wait: Callable[..., Awaitable[bool]],
        arguments: tuple[object, ...],
        wanted: tuple[str, str, Token],
        until: float,
    ) -> None:
        left = until - self._clock.seconds()
        if left > 0 and await wait(*arguments, left):
            return
        stream, writer, token = wanted
        raise NotYetApplied(stream=stream, writer=writer or "all writers", wanted=token)

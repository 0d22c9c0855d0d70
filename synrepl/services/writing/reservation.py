"""Explicit reservations: tokens that are reserved before their facts are known."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from synrepl.core.errors import InputError, Refused
from synrepl.core.tokens import Token
from synrepl.storage.store import WriterLease
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row


class ReservationVoid(Refused):
    """tokens {tokens} of {stream!r} are no longer reserved for {writer!r}: its session with the database was lost meanwhile; nothing was written, reserve again"""


class TooManyFacts(InputError):
    """{facts} facts were given for {left} reserved tokens"""


class ReservingWriter(Protocol):
    """The writer that reserved the tokens: a :class:`~.stream_writer.StreamWriter`."""

    writer: str

    async def write_reserved(
        self, lease: WriterLease, stream: Stream, facts: Sequence[Fact]
    ) -> None:
        """Write facts at reserved tokens."""

    async def settle_reserved(
        self, lease: WriterLease, stream: Stream, tokens: Sequence[Token], facts: Sequence[Fact]
    ) -> None:
        """Settle tokens; ``facts`` are those that were written at some of them."""


class Reservation:
    """Reserved tokens of one stream, as an asynchronous context manager.

    Leaving the block settles all tokens. Facts that were written are announced; the other
    tokens count as rolled back.

    :ivar tokens: the reserved tokens, ascending
    """

    def __init__(
        self, writer: ReservingWriter, lease: WriterLease, stream: Stream, tokens: Sequence[Token]
    ) -> None:
        self.tokens = tokens
        self._writer = writer
        self._lease = lease
        self._stream = stream
        self._written: list[Fact] = []

    async def write(self, facts: Sequence[Sequence[Row]]) -> None:
        """Write facts at the first unused tokens, in one transaction.

        :raises ReservationVoid: :raises Fenced: :raises BadValue: :raises DatabaseAway:
        """
        free = self.tokens[len(self._written) :]
        if len(facts) > len(free):
            raise TooManyFacts(facts=len(facts), left=len(free))
        made = [
            Fact(token, self._writer.writer, tuple(rows))
            for token, rows in zip(free, facts, strict=False)
        ]
        await self._writer.write_reserved(self._lease, self._stream, made)
        self._written += made

    async def __aenter__(self) -> Reservation:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._writer.settle_reserved(self._lease, self._stream, self.tokens, self._written)

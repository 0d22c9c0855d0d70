"""Drops facts of the ``federation`` stream that all senders have acknowledged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.tokens import Token
from synrepl.services.serving.federation_acks import FederationAcks
from synrepl.services.sizes import DEFAULT_SIZES
from synrepl.services.trimmer import TrimCounts
from synrepl.storage.store import FactStore, TrimResult
from synrepl.streams.definition import Stream

C = TypeVar("C")


class TrimmableStreams(Protocol):
    """Streams that are kept in this process; see :class:`synrepl.services.bus.master_subscriber.Mirror`."""

    def trim(self, stream: Stream, upto: Token, limit: int) -> TrimResult:
        """Drop facts up to a token, at most about ``limit`` rows."""


#: Drops facts up to a token; the second argument is the approximate maximum of rows.
TrimFunction = Callable[[Token, int], Awaitable[TrimResult]]


def store_trimmer(store: FactStore, stream: Stream) -> TrimFunction:
    """A function that trims an in-memory stream written by this process."""

    async def trim(upto: Token, limit: int) -> TrimResult:
        await store.record_positions(stream, upto, {})  # facts above it must stay
        return await store.trim(stream, upto, 0, limit)

    return trim


def mirror_trimmer(mirror: TrimmableStreams, stream: Stream) -> TrimFunction:
    """A function that trims this process's copy of a stream written by another process."""

    async def trim(upto: Token, limit: int) -> TrimResult:
        return mirror.trim(stream, upto, limit)

    return trim


class FederationTrim:
    """Trims the stream whenever the floor of the acknowledgements rises.

    :param acks: the acknowledgements; their ``on_change`` is set
    :param trim: trims the stream
    :ivar trimming: status, as for other streams that are trimmed
    """

    def __init__(
        self, scheduler: Scheduler, acks: FederationAcks[C], trim: TrimFunction, log: Logger
    ) -> None:
        self._scheduler = scheduler
        self._acks = acks
        self._trim = trim
        self._log = log
        self._busy = False
        self._done: Token = 0
        self._rows = 0
        acks.on_change = self._changed

    @property
    def trimming(self) -> TrimCounts:
        """Number of dropped rows, and the sender that holds the others."""
        return TrimCounts(self._rows, self._acks.held_by)

    def stream_restarted(self) -> None:
        """The stream has restarted at a lower token."""
        self._done = 0
        self._acks.stream_restarted()

    def _changed(self) -> None:
        floor = self._acks.floor
        if not self._busy and floor is not None and floor > self._done:
            self._busy = True
            self._scheduler.spawn("trim federation", self._run())

    async def _run(self) -> None:
        try:
            while (floor := self._acks.floor) is not None and floor > self._done:
                trim = await self._trim(floor, DEFAULT_SIZES.trim_rows)
                self._rows += trim.rows
                if trim.rows < DEFAULT_SIZES.trim_rows:
                    self._done = floor
                await self._scheduler.sleep(0)
        except SynreplError as error:
            self._log.warn("cannot trim federation: {error}", error=error)
        finally:
            self._busy = False


def federation_status(acks: FederationAcks[Any], trimmed: Token) -> Mapping[str, Any] | None:
    """Acknowledgements as JSON; None while sending is not delegated.

    ``floor`` is the token that all senders have acknowledged, and ``held_by`` names the sender
    that has acknowledged the least. ``lost_upto`` is the last token that was dropped before all
    had acknowledged it, because too many facts were kept.

    :param trimmed: the last trimmed token of the stream
    """
    if not acks.senders:
        return None
    floor = acks.floor
    return {
        "senders": dict(acks.senders),
        "floor": floor,
        "held_by": acks.held_by,
        "lost_upto": trimmed if trimmed > (floor or 0) else None,
    }

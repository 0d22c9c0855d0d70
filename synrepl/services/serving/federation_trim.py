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
    """Streams kept in this process; see :class:`synrepl.services.bus.mirror.Mirror`."""

    def trim(self, stream: Stream, upto: Token, limit: int) -> TrimResult:
        """Drop facts up to a token, about ``limit`` rows at most."""


#: Drops facts up to a token, at most about so many rows.
TrimFunction = Callable[[Token, int], Awaitable[TrimResult]]


def store_trimmer(store: FactStore, stream: Stream) -> TrimFunction:
    """Trims a stream in memory that this process writes."""

    async def trim(upto: Token, limit: int) -> TrimResult:
        await store.record_positions(stream, upto, {})  # nothing above it may go
        return await store.trim(stream, upto, 0, limit)

    return trim


def mirror_trimmer(mirror: TrimmableStreams, stream: Stream) -> TrimFunction:
    """Trims a stream that another process writes, as far as this one keeps it, too."""

    async def trim(upto: Token, limit: int) -> TrimResult:
        return mirror.trim(stream, upto, limit)

    return trim


class FederationTrim:
    """Trims the stream whenever the floor of the acknowledgements rises.

    :param acks: whose ``on_change`` is taken over
    :param trim: where the facts are
    :ivar trimming: what has been dropped, as for other streams that are trimmed
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
        """How many rows have been dropped, and who keeps the others."""
        return TrimCounts(self._rows, self._acks.held_by)

    def stream_restarted(self) -> None:
        """The stream has started again at a lower token."""
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
    """What the senders have acknowledged; None while sending is not delegated.

    ``floor`` is the token up to which all have, and ``held_by`` names the sender that
    has acknowledged the least. ``lost_upto`` is the last token that was dropped because
    too many facts waited, before all had acknowledged it.

    :param trimmed: the last token of the stream that is gone
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

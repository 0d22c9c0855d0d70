"""Replays recorded lines, at their original speed or another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple

from synrepl.core.clock import Scheduler
from synrepl.services.bus.channels import Channels
from synrepl.tools.judge.judge import Recorded
from synrepl.wire.dialects import Side

#: What a server says of its streams. SERVER, PING and ERROR belong to the
#: connection that was recorded; the one it is played on has its own.
_SERVED = (b"RDATA ", b"POSITION ", b"REMOTE_SERVER_UP ")
_TO_A_CLIENT = (*_SERVED, b"SYNC ")

#: Who is there now asks for himself.
_ASKS = b"REPLICATE"


class PlaybackLine(NamedTuple):
    """One line to be played.

    :ivar at_ms: when it was recorded, in ms since the epoch
    :ivar channel: where it is to be published; None on a connection
    """

    at_ms: int
    text: bytes
    channel: str | None = None


def lines_for_client(
    recording: Iterable[Recorded], connection: int | None
) -> Iterator[PlaybackLine]:
    """The server's lines (on Redis, everybody's) that a client would get over TCP.

    :param connection: which one, of a recording of several
    """
    for recorded in recording:
        if recorded.text.startswith(_TO_A_CLIENT) and _is_of(recorded, connection):
            yield PlaybackLine(recorded.at_ms, recorded.text)


def lines_for_bus(
    recording: Iterable[Recorded], connection: int | None, then: str | None, now: str
) -> Iterator[PlaybackLine]:
    """What is published on Redis: everybody's lines, or what the server said over TCP.

    :param then: what the server was called; its channels become those of ``now``
    """
    main = Channels(now).main
    for recorded in recording:
        channel, text = recorded.channel, recorded.text
        if channel is not None:
            if text.partition(b" ")[0] != _ASKS:
                yield PlaybackLine(recorded.at_ms, text, _renamed(channel, then, now))
        elif text.startswith(_SERVED) and _is_of(recorded, connection):
            yield PlaybackLine(recorded.at_ms, text, main)


def _is_of(recorded: Recorded, connection: int | None) -> bool:
    if recorded.channel is not None:
        return True
    return recorded.sender is Side.SERVER and recorded.connection == connection


def _renamed(channel: str, then: str | None, now: str) -> str:
    name, slash, rest = channel.partition("/")
    return f"{now}{slash}{rest}" if name == then else channel


_BURST = 65_536


class Burst(NamedTuple):
    """Lines that are due together, of a bounded size.

    :ivar channel: where they go on Redis; None on a connection
    """

    channel: str | None
    lines: list[bytes]


#: Sends lines; returns once there is room for more, False when there never will be.
Send = Callable[[Burst], Awaitable[bool]]


async def replay(
    scheduler: Scheduler, part: Iterable[PlaybackLine], speed: float, send: Send
) -> int:
    """Play a part of a recording, from :mod:`~synrepl.tools.tap.replay`.

    :param speed: 1 for as it was, 2 for twice as fast, 0 for at once
    :returns: how many lines were sent
    """
    began = scheduler.seconds()
    sent = 0
    for due, burst in _bursts(part, speed):
        wait = began + due - scheduler.seconds()
        if wait > 0:
            await scheduler.sleep(wait)
        sent += len(burst.lines)
        if not await send(burst):
            break
    return sent


def _bursts(part: Iterable[PlaybackLine], speed: float) -> Iterator[tuple[float, Burst]]:
    """When each is due, in seconds from the first."""
    first_ms: int | None = None
    due = 0.0
    burst = Burst(None, [])
    size = 0
    for cue in part:
        first_ms = cue.at_ms if first_ms is None else first_ms
        at = (cue.at_ms - first_ms) / 1000 / speed if speed else 0.0
        if burst.lines and (at > due or size >= _BURST or cue.channel != burst.channel):
            yield due, burst
            burst, size = Burst(None, []), 0
        if not burst.lines:
            burst = Burst(cue.channel, [])
        due = max(due, at)  # a clock that was set back does not bring lines forward
        burst.lines.append(cue.text)
        size += len(cue.text)
    if burst.lines:
        yield due, burst

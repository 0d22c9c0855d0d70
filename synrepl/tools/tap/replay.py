"""Playing what was recorded, at the pace of then or another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple

from synrepl.core.clock import Scheduler
from synrepl.tools.tap.parts import Cue

_BURST = 65_536


class Burst(NamedTuple):
    """Lines that are due together, of a bounded size.

    :ivar channel: where they go on Redis; None on a connection
    """

    channel: str | None
    lines: list[bytes]


#: Sends lines; returns once there is room for more, False when there never will be.
Send = Callable[[Burst], Awaitable[bool]]


async def replay(scheduler: Scheduler, part: Iterable[Cue], speed: float, send: Send) -> int:
    """Play a part of a recording, from :mod:`~synrepl.tools.tap.parts`.

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


def _bursts(part: Iterable[Cue], speed: float) -> Iterator[tuple[float, Burst]]:
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

"""Playing a recording on Redis, where nobody connects and everybody may ask at any time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import Refused
from synrepl.tools.tap.parts import Cue
from synrepl.tools.tap.played import Played
from synrepl.tools.tap.replay import Burst, replay

#: Publishes lines on a channel at once; returns when Redis has taken them, False when it
#: never will.
Say = Callable[[str, Sequence[bytes]], Awaitable[bool]]


class SomebodySpeaks(Refused):
    """somebody speaks on the channel {channel} already: whoever listens there would take the recording for what happens now; replay it on a Redis of its own, or under another --server-name"""


class BusReplay:
    """Waits for the first REPLICATE, plays, and tells who comes later how far it is.

    :param channel: where streams are spoken of
    :param begun: begin without being asked
    """

    def __init__(self, scheduler: Scheduler, channel: str, say: Say, begun: bool) -> None:
        self._scheduler = scheduler
        self._channel = channel
        self._say = say
        self._begun = begun
        self._beginning: Promise[None] = scheduler.promise()
        self._played = Played()
        self._over = False
        self._asked = False
        self._answering = False

    def heard(self, messages: Sequence[bytes]) -> None:
        """Messages on the channel, our own among them."""
        asked = any(message.rstrip() == b"REPLICATE" for message in messages)
        if self._begun:
            self._asked = self._asked or asked
            self._answer()
        elif any(message.startswith(b"RDATA ") for message in messages):
            self._begun = True
            self._beginning.errback(SomebodySpeaks(channel=self._channel))
        elif asked:
            self._begun = True
            self._beginning.callback(None)

    async def play(self, part: Iterable[Cue], speed: float) -> int:
        """Play it to its end; how many lines were taken.

        :raises SomebodySpeaks: before anybody asked
        """
        if not self._begun:
            await self._beginning
        count = await replay(self._scheduler, part, speed, self._send)
        self._over = True
        self._answer()
        return count

    async def _send(self, burst: Burst) -> bool:
        for line in burst.lines:
            self._played.take(line)
        taken = await self._say(burst.channel or self._channel, burst.lines)
        self._answer()
        return taken

    def _answer(self) -> None:
        """Answer who has asked, all at once, unless that has to wait."""
        if self._asked and not self._answering and (self._over or not self._played.amid_batch):
            self._asked, self._answering = False, True
            self._scheduler.spawn("tell positions", self._tell())

    async def _tell(self) -> None:
        try:
            await self._say(self._channel, self._played.positions())
        finally:
            self._answering = False
        self._answer()

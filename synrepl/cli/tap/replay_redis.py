"""Replays a recording on Redis."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred, FirstError, gatherResults

from synrepl.adapters.redis.address import RedisAddress
from synrepl.adapters.redis.sentinel import Sentinels
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.tap.redis import TapLink
from synrepl.cli.terminal import printable
from synrepl.core.errors import Unavailable
from synrepl.services.bus.channels import Channels
from synrepl.tools.tap.bus_replay import BusReplay
from synrepl.tools.tap.recorders import Published
from synrepl.tools.tap.recording import read_recording
from synrepl.tools.tap.replay import ReplayPlan, lines_for_bus


class ReplayEnded(Unavailable):
    """the connection to Redis at {where} has ended: {reason}; start the replay again, it begins anew"""


@dataclass(frozen=True, slots=True)
class RedisReplay:
    """A replay on the channels of one server.

    :ivar server_name: the server name that the channels are named after
    :ivar unasked: whether to start without waiting for the first REPLICATE
    """

    where: RedisAddress | Sentinels
    server_name: str
    unasked: bool

    async def play(self, reactor: Any, plan: ReplayPlan, notify: Callable[[str], object]) -> None:
        """Replay, then answer REPLICATEs until cancelled.

        :param notify: prints a sentence about progress
        :raises RedisAway: Redis cannot be reached, or refuses
        :raises ReplayEnded: the connection to Redis was lost
        :raises ChannelInUse: another process publishes on the channel
        """
        scheduler = TwistedScheduler(reactor)
        link = TapLink(reactor, scheduler, self.where)
        channel = Channels(self.server_name).main
        try:
            publisher = await link.publisher()
            replay = BusReplay(scheduler, channel, publisher.publish_some, self.unasked)

            def on_messages(messages: Sequence[Published]) -> None:
                replay.messages_received([message.text for message in messages])

            await link.listen([channel], on_messages)
            waiting = "plays" if self.unasked else "waits for REPLICATE"
            notify(f"{waiting} on channel {printable(channel)} of Redis at {self.where}")
            played = self._played(replay, plan, link, notify)
            await _both(played, self._lost(link))
        finally:
            scheduler.stop()
            await link.close()

    async def _played(
        self,
        replay: BusReplay,
        plan: ReplayPlan,
        link: TapLink,
        notify: Callable[[str], object],
    ) -> None:
        """Replay to the end of the recording, and report it."""
        with closing(read_recording(plan.path)) as recording:
            lines = lines_for_bus(
                recording, plan.connection, plan.recorded_server_name, self.server_name
            )
            count = await replay.play(lines, plan.speed)
        if not link.is_over:
            notify(f"{count} lines were played; REPLICATE is now answered with the last positions")

    async def _lost(self, link: TapLink) -> None:
        """Wait until a connection is lost.

        :raises ReplayEnded:
        """
        why = await link.until_over()
        raise ReplayEnded(where=self.where, reason=printable(str(why).rstrip(".")))


async def _both(*jobs: Coroutine[Any, Any, None]) -> None:
    """Run coroutines until all have returned, or one has failed."""
    try:
        await gatherResults(map(Deferred.fromCoroutine, jobs), consumeErrors=True)
    except FirstError as error:
        error.subFailure.raiseException()

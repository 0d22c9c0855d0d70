"""Records what processes publish on Redis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from synrepl.adapters.redis.address import RedisAddress
from synrepl.adapters.redis.sentinel import Sentinels
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.tap.redis import TapLink
from synrepl.cli.terminal import printable
from synrepl.services.bus.channels import Channels
from synrepl.tools.tap.pseudonyms import Pseudonyms
from synrepl.tools.tap.recorders import BusRecorder, Published
from synrepl.tools.tap.recording import RecordingEnded, RecordingFile, RecordingNotWritable
from synrepl.wire.codec import write_line
from synrepl.wire.commands import Replicate
from synrepl.wire.dialects import CURRENT


@dataclass(frozen=True, slots=True)
class RedisRecordingSource:
    """The channels of one server; a :class:`~synrepl.tools.tap.recording.RecordingSource`.

    :ivar silent: whether to send nothing, not even REPLICATE
    :ivar pseudonyms: replaces the server name in channel names; None records them as they are
    """

    where: RedisAddress | Sentinels
    server_name: str
    silent: bool
    pseudonyms: Pseudonyms | None

    async def record(
        self,
        reactor: Any,
        recording: RecordingFile,
        seconds: float | None,
        notify: Callable[[str], object],
    ) -> None:
        """Record all messages.

        :raises RedisAway: Redis cannot be reached, or refuses
        :raises RecordingEnded: :raises RecordingNotWritable: see :class:`.RecordingSource`
        """
        scheduler = TwistedScheduler(reactor)
        link = TapLink(reactor, scheduler, self.where)
        asked = [] if self.silent else [write_line(Replicate(), CURRENT)]
        recorder = BusRecorder(recording, scheduler.seconds, self._shown(), asked)

        def on_messages(messages: Sequence[Published]) -> None:
            recorder.messages_received(messages)
            if recorder.failure is not None:
                link.end()

        channels = Channels(self.server_name)
        try:
            publisher = await link.publisher() if asked else None
            await link.listen(channels.subscriptions((), user_ip=True), on_messages)
            notify(f"recording channel {printable(channels.main)} of Redis at {self.where}")
            try:
                if publisher is not None:
                    await publisher.publish_some(channels.main, asked)
                why = await link.until_over(seconds)
            finally:
                await link.close()  # before the lines are counted
                notify(f"{recording.lines} lines are in {recording.path}")
                if not recorder.received:
                    said = printable(channels.main)
                    notify(f"nobody was heard on channel {said}; is that the server's name?")
        finally:
            await link.close()
        if recorder.failure is not None:
            raise RecordingNotWritable(path=recording.path, reason=recorder.failure.strerror)
        if why is not None:
            where = f"Redis at {self.where}"
            raise RecordingEnded(
                where=where, reason=printable(why.rstrip(".")), path=recording.path
            )

    def _shown(self) -> dict[str, str]:
        """The name in the recording of each channel."""
        real = Channels(self.server_name)
        shown = (
            real if self.pseudonyms is None else Channels(self.pseudonyms.server(self.server_name))
        )
        return {real.main: shown.main, real.user_ip: shown.user_ip}

"""Records messages from Redis before anything else processes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from synrepl.tools.tap.recording import RecordingFile


class Published(NamedTuple):
    """A message, and the channel on which it was published."""

    channel: str
    text: bytes


class BusRecorder:
    """Writes messages to a recording.

    :param seconds: returns the time, in seconds since the epoch
    :param channel_names: by channel, its name in the recording
    :param own_lines: lines that the recorder publishes itself
    :ivar received: number of lines from others
    :ivar failure: the error that ended the recording; None while it works
    """

    def __init__(
        self,
        recording: RecordingFile,
        seconds: Callable[[], float],
        channel_names: Mapping[str, str],
        own_lines: Sequence[bytes],
    ) -> None:
        self._recording = recording
        self._seconds = seconds
        self._channel_names = channel_names
        self._own_lines = frozenset(own_lines)
        self.received = 0
        self.failure: OSError | None = None

    def messages_received(self, messages: Sequence[Published]) -> None:
        """Record messages in their order."""
        if self.failure is not None:
            return
        at_ms = int(self._seconds() * 1000)
        for channel, some in groupby(messages, lambda message: message.channel):
            lines = [message.text for message in some]
            try:
                self._recording.publish(at_ms, self._channel_names.get(channel, channel), lines)
            except OSError as error:
                self.failure = error
                return
            self.received += sum(line not in self._own_lines for line in lines)

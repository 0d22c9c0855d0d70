"""Records messages from Redis before anything else processes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from synrepl.tools.tap.recording import RecordingFile


class Published(NamedTuple):
    """A message, and the channel that it was published on."""

    channel: str
    text: bytes


class RecordedBus:
    """Writes messages to a recording.

    :param seconds: tells the time, in seconds since the epoch
    :param shown: by name of a channel, what it is called in the recording
    :param own: lines that the recorder says itself, which show nobody to be there
    :ivar heard: number of lines from others
    :ivar trouble: the error that ended the recording; None while it works
    """

    def __init__(
        self,
        recording: RecordingFile,
        seconds: Callable[[], float],
        shown: Mapping[str, str],
        own: Sequence[bytes],
    ) -> None:
        self._recording = recording
        self._seconds = seconds
        self._shown = shown
        self._own = frozenset(own)
        self.heard = 0
        self.trouble: OSError | None = None

    def published(self, messages: Sequence[Published]) -> None:
        """Put messages on record, in their order."""
        if self.trouble is not None:
            return
        at_ms = int(self._seconds() * 1000)
        for channel, some in groupby(messages, lambda message: message.channel):
            lines = [message.text for message in some]
            try:
                self._recording.publish(at_ms, self._shown.get(channel, channel), lines)
            except OSError as error:
                self.trouble = error
                return
            self.heard += sum(line not in self._own for line in lines)

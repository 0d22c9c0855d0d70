"""Record what is received before it is processed: lines of a client session, messages from Redis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from synrepl.tools.tap.recording import RecordingFile
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command
from synrepl.wire.dialects import Dialect, Side
from synrepl.wire.lines import LineSplitter, LineTooLong
from synrepl.wire.session import ProtocolSession, SessionLimits


class RecordedSession(ProtocolSession):
    """A :class:`~synrepl.wire.session.ProtocolSession` that also writes to a recording.

    :param seconds: returns the time, in seconds since the epoch
    :ivar failure: the error that ended the recording and closed the session; None while it works
    """

    def __init__(
        self,
        recording: RecordingFile,
        seconds: Callable[[], float],
        *,
        name: str,
        dialect: Dialect,
        limits: SessionLimits,
    ) -> None:
        super().__init__(
            Side.CLIENT,
            server_name=None,
            name=name,
            dialect=dialect,
            now=seconds(),
            limits=limits,
        )
        self._recording = recording
        self._seconds = seconds
        self._recorded_splitter = LineSplitter(limits.line)
        self.failure: OSError | None = None

    def start(self) -> None:
        """Record the connection, and send the greeting."""
        self._record("-", [b"connected"])
        super().start()

    def receive(self, data: bytes, now: float) -> list[Command]:
        """Record the lines as they came, including those that are then refused."""
        try:
            lines: Sequence[bytes] = self._recorded_splitter.feed(data)
        except LineTooLong as error:
            self._record("S", error.before)
            self._record("-", [str(error).encode()])
        else:
            self._record("S", lines)
        return super().receive(data, now)

    def data_to_send(self) -> bytes:
        """Record the lines that are being sent."""
        data = super().data_to_send()
        if data:
            self._record("C", data.removesuffix(b"\n").split(b"\n"))
        return data

    def connection_lost(self) -> int:
        """Record the end, and the server's unfinished line."""
        if self._recorded_splitter.partial_length:
            self._record("S-partial", self._recorded_splitter.feed(b"\n"))
        self._record("-", [b"eof" if self.closed_reason is None else b"closed"])
        return super().connection_lost()

    def _record(self, direction: str, lines: Sequence[bytes]) -> None:
        if self.failure is not None or not lines:
            return
        try:
            self._recording.write(int(self._seconds() * 1000), direction, lines)
        except OSError as error:
            self.failure = error
            self.close(CloseReason.LOCAL)


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

"""A client session that records the lines of both directions before processing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from synrepl.tools.tap.recording import RecordingFile
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command
from synrepl.wire.dialects import Dialect, Side
from synrepl.wire.lines import LineSplitter, LineTooLong
from synrepl.wire.session import ProtocolSession, SessionLimits


class RecordedSession(ProtocolSession):
    """See :class:`~synrepl.wire.session.ProtocolSession`; this one also writes to a recording.

    :param seconds: tells the time, in seconds since the epoch
    :ivar trouble: why nothing can be recorded any more; the session ends by it
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
        self._heard = LineSplitter(limits.line)
        self.trouble: OSError | None = None

    def start(self) -> None:
        """Note the connection, and greet."""
        self._record("-", [b"connected"])
        super().start()

    def receive(self, data: bytes, now: float) -> list[Command]:
        """Put the lines on record as they came, those too that are refused then."""
        try:
            lines: Sequence[bytes] = self._heard.feed(data)
        except LineTooLong as error:
            self._record("S", error.before)
            self._record("-", [str(error).encode()])
        else:
            self._record("S", lines)
        return super().receive(data, now)

    def data_to_send(self) -> bytes:
        """Put the lines on record that are being sent."""
        data = super().data_to_send()
        if data:
            self._record("C", data.removesuffix(b"\n").split(b"\n"))
        return data

    def connection_lost(self) -> int:
        """Note the end, and what the server had begun to say."""
        if self._heard.half:
            self._record("S-partial", self._heard.feed(b"\n"))
        self._record("-", [b"eof" if self.closed_reason is None else b"closed"])
        return super().connection_lost()

    def _record(self, direction: str, lines: Sequence[bytes]) -> None:
        if self.trouble is not None or not lines:
            return
        try:
            self._recording.write(int(self._seconds() * 1000), direction, lines)
        except OSError as error:
            self.trouble = error
            self.close(CloseReason.LOCAL)

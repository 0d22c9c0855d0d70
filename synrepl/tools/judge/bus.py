"""The rules specific to Redis, where every process receives all messages, including its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from synrepl.tools.judge.rules import ANSWER, CHANNEL, ECHO, RuleFinding
from synrepl.tools.judge.track import WriterTrack
from synrepl.wire.commands import Rdata

#: Commands that contain a time or an ID, so that no two of them are equal. Source: recordings.
_UNIQUE_COMMANDS = (b"USER_SYNC ", b"USER_IP ", b"NEW_ACTIVE_TASK ")
_ECHO_MS = 1_000
_MOST_LINES = 1_000

_ANSWER_MS = 30_000
_MOST_REQUESTS = 1_000

_USER_IP = "USER_IP"
_STREAM = "stream/"


class BusJudge:
    """Judges the channels of one server."""

    def __init__(self) -> None:
        self._published: dict[int, int] = {}  # hash of the line -> time in ms
        #: Time in ms and line of the latest REPLICATE commands.
        self._requests: deque[tuple[int, int]] = deque(maxlen=_MOST_REQUESTS)

    def published(
        self, channel: str, line: bytes, at_ms: int, number: int
    ) -> Iterator[RuleFinding]:
        """Judge a line and the channel on which it was published."""
        if not _belongs(channel.partition("/")[2], line):
            yield RuleFinding(CHANNEL, number, f"{_excerpt(line)} on {channel[:100]}")
        if line.startswith(_UNIQUE_COMMANDS):
            key = hash(line)
            before = self._published.pop(key, None)
            if before is not None and at_ms - before <= _ECHO_MS:
                yield RuleFinding(ECHO, number, _excerpt(line))
            elif len(self._published) >= _MOST_LINES:
                self._published.pop(next(iter(self._published)))
            self._published[key] = at_ms

    def replicate_sent(self, at_ms: int, number: int) -> None:
        """Register a REPLICATE, which every writer has to answer."""
        self._requests.append((at_ms, number))

    def row_sent(
        self, track: WriterTrack, rdata: Rdata, at_ms: int, number: int, requests: int
    ) -> Iterator[RuleFinding]:
        """Check that a writer that sends a row has announced its position.

        A writer that sends rows is connected, so it has to answer REPLICATE.

        :param track: the writer's track
        :param requests: number of REPLICATE commands so far
        """
        if track.answered_requests >= requests or not self._requests:
            return
        first = max(0, track.answered_requests - (requests - len(self._requests)))
        since, line = self._requests[first]
        if at_ms - since > _ANSWER_MS:
            track.answered_requests = requests  # report it once
            name = f"{rdata.stream} of {rdata.writer}"
            yield RuleFinding(ANSWER, number, f"{name}: no POSITION since REPLICATE in line {line}")


def _belongs(suffix: str, line: bytes) -> bool:
    """Whether a line belongs on the channel with this suffix after the server's name."""
    verb, _, rest = line.partition(b" ")
    if suffix.startswith(_STREAM):  # only among processes of synrepl
        stream = rest.partition(b" ")[0].decode(errors="replace")
        return verb in (b"RDATA", b"POSITION") and suffix == f"{_STREAM}{stream}"
    return suffix == (_USER_IP if verb == b"USER_IP" else "")


def _excerpt(line: bytes) -> str:
    return line[:60].decode(errors="replace")

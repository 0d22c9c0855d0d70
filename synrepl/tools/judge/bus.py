"""The rules specific to Redis, where every process receives all messages, including its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from synrepl.tools.judge.rules import ANSWER, CHANNEL, ECHO, RuleFinding
from synrepl.tools.judge.track import WriterTrack
from synrepl.wire.commands import Rdata

#: No two of these are alike: each has a time or an ID in it. Source: recordings.
_SAID_ONCE = (b"USER_SYNC ", b"USER_IP ", b"NEW_ACTIVE_TASK ")
_ECHO_MS = 1_000
_MOST_LINES = 1_000

_ANSWER_MS = 30_000
_MOST_ROUNDS = 1_000

_USER_IP = "USER_IP"
_STREAM = "stream/"


class BusJudge:
    """The channels of one server."""

    def __init__(self) -> None:
        self._said: dict[int, int] = {}  # hash of the line -> when
        #: When REPLICATE was said, and in which line; the newest of them.
        self._rounds: deque[tuple[int, int]] = deque(maxlen=_MOST_ROUNDS)

    def published(
        self, channel: str, line: bytes, at_ms: int, number: int
    ) -> Iterator[RuleFinding]:
        """Take a line and the channel that it was published on."""
        if not _belongs(channel.partition("/")[2], line):
            yield RuleFinding(CHANNEL, number, f"{_shown(line)} on {channel[:100]}")
        if line.startswith(_SAID_ONCE):
            key = hash(line)
            before = self._said.pop(key, None)
            if before is not None and at_ms - before <= _ECHO_MS:
                yield RuleFinding(ECHO, number, _shown(line))
            elif len(self._said) >= _MOST_LINES:
                self._said.pop(next(iter(self._said)))
            self._said[key] = at_ms

    def asked(self, at_ms: int, number: int) -> None:
        """Somebody has said REPLICATE."""
        self._rounds.append((at_ms, number))

    def spoke(
        self, track: WriterTrack, rdata: Rdata, at_ms: int, number: int, asked: int
    ) -> Iterator[RuleFinding]:
        """A writer has said a row: it is there, so it has to have said where it is.

        :param track: of the writer
        :param asked: how often REPLICATE was said
        """
        if track.answered >= asked or not self._rounds:
            return
        first = max(0, track.answered - (asked - len(self._rounds)))
        since, line = self._rounds[first]
        if at_ms - since > _ANSWER_MS:
            track.answered = asked  # once is enough
            name = f"{rdata.stream} of {rdata.writer}"
            yield RuleFinding(ANSWER, number, f"{name}: no POSITION since REPLICATE in line {line}")


def _belongs(beyond: str, line: bytes) -> bool:
    """Whether a line belongs on a channel, by what follows the server's name in it."""
    verb, _, rest = line.partition(b" ")
    if beyond.startswith(_STREAM):  # among processes of synrepl
        stream = rest.partition(b" ")[0].decode(errors="replace")
        return verb in (b"RDATA", b"POSITION") and beyond == f"{_STREAM}{stream}"
    return beyond == (_USER_IP if verb == b"USER_IP" else "")


def _shown(line: bytes) -> str:
    return line[:60].decode(errors="replace")

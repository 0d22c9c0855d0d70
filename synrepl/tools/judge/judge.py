"""Judges recorded traffic line by line, by the table in :mod:`synrepl.tools.judge.rules`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from synrepl.core.errors import InputError
from synrepl.tools.judge.connection import ConnectionJudge
from synrepl.tools.judge.rules import RuleFinding
from synrepl.tools.judge.track import StreamTraits
from synrepl.wire.dialects import Dialect, Side

MOST_CONNECTIONS = 1_000

_OPENED = ("connected", "open")
_SIDE_CLOSED = {"eof": Side.SERVER, "S-eof": Side.SERVER, "C-eof": Side.CLIENT}
_CLOSED = "closed"


class TooManyRecordedConnections(InputError):
    """more than {most} connections at a time: such a recording cannot be judged"""


class Recorded(NamedTuple):
    """One line of a recording.

    :ivar number: the line number, from 1
    :ivar at_ms: when it was recorded, in ms since the epoch
    :ivar sender: the side that sent it; None for a note of the recorder, and on Redis
    :ivar text: the line without its newline, or the note
    :ivar connection: which of several connections; None where there is only one
    :ivar channel: on Redis, the channel on which it was published
    """

    number: int
    at_ms: int
    sender: Side | None
    text: bytes
    connection: int | None = None
    channel: str | None = None


class TrafficJudge:
    """Takes the lines of one recording in order and finds the rules that they break.

    Memory is bounded by the number of connections that are open at a time, and of the writers of
    their streams.
    """

    def __init__(self, dialect: Dialect, traits: StreamTraits) -> None:
        self._dialect = dialect
        self._traits = traits
        self._connections: dict[int | str | None, ConnectionJudge] = {}

    def judge(self, recorded: Recorded) -> Iterator[RuleFinding]:
        """Judge the next line; findings may be about lines before it.

        :raises TooManyRecordedConnections: :raises TooManyTracks: it cannot be judged in bounded memory
        """
        if recorded.channel is not None:
            findings = self._published(recorded, recorded.channel)
        elif recorded.sender is None:
            findings = self._noted(recorded)
        else:
            connection = self._connection(recorded.connection)
            findings = connection.line_sent(
                recorded.sender, recorded.text, recorded.at_ms, recorded.number
            )
        return filter(self._applies, findings)

    def end(self) -> Iterator[RuleFinding]:
        """End the recording; findings about all open connections."""
        for key in list(self._connections):
            yield from filter(self._applies, self._close(key))

    def _applies(self, finding: RuleFinding) -> bool:
        return self._dialect.name in finding.rule.dialects

    def _published(self, recorded: Recorded, channel: str) -> Iterator[RuleFinding]:
        connection = self._connection(channel.partition("/")[0])
        return connection.published(channel, recorded.text, recorded.at_ms, recorded.number)

    def _noted(self, recorded: Recorded) -> Iterator[RuleFinding]:
        note, key = recorded.text.decode(errors="replace"), recorded.connection
        if note in _OPENED:
            yield from self._close(key)
            self._connection(key, opened=True)
        elif note in _SIDE_CLOSED and key in self._connections:
            yield from self._connections[key].side_closed(_SIDE_CLOSED[note], recorded.number)
        elif note == _CLOSED:
            yield from self._close(key)

    def _close(self, key: int | str | None) -> Iterator[RuleFinding]:
        connection = self._connections.pop(key, None)
        if connection is not None:
            yield from connection.end()

    def _connection(self, key: int | str | None, opened: bool = False) -> ConnectionJudge:
        connection = self._connections.get(key)
        if connection is None:
            if len(self._connections) >= MOST_CONNECTIONS:
                raise TooManyRecordedConnections(most=MOST_CONNECTIONS)
            connection = ConnectionJudge(self._dialect, self._traits, opened)
            self._connections[key] = connection
        return connection

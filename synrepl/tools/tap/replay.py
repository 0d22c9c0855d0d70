"""Replays recorded lines, at their original speed or a multiple of it, by a plan."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from synrepl.core.clock import Scheduler
from synrepl.core.errors import InputError
from synrepl.services.bus.channels import Channels
from synrepl.tools.judge.judge import Recorded
from synrepl.tools.tap.recording import (
    EXAMINED_LINES,
    RecordingDialectUnknown,
    read_recording,
    recording_info,
)
from synrepl.wire.dialects import CURRENT, MODERN, Dialect, Side

#: Commands of a server about its streams. SERVER, PING and ERROR belong to the recorded connection;
#: the connection of the replay has its own.
_STREAM_COMMANDS = (b"RDATA ", b"POSITION ", b"REMOTE_SERVER_UP ")
_TO_A_CLIENT = (*_STREAM_COMMANDS, b"SYNC ")

#: Left out on Redis: the processes that are connected now send their own.
_REPLICATE = b"REPLICATE"


class PlaybackLine(NamedTuple):
    """One line to be played.

    :ivar at_ms: when it was recorded, in ms since the epoch
    :ivar channel: the channel on which to publish it; None on a TCP connection
    """

    at_ms: int
    text: bytes
    channel: str | None = None


def lines_for_client(
    recording: Iterable[Recorded], connection: int | None
) -> Iterator[PlaybackLine]:
    """The lines of the server (on Redis, of all processes) that a client would get over TCP.

    :param connection: the connection to play, in a recording of several
    """
    for recorded in recording:
        if recorded.text.startswith(_TO_A_CLIENT) and _is_of(recorded, connection):
            yield PlaybackLine(recorded.at_ms, recorded.text)


def lines_for_bus(
    recording: Iterable[Recorded], connection: int | None, recorded_name: str | None, name: str
) -> Iterator[PlaybackLine]:
    """The lines to publish on Redis: those of all processes, or the server's from TCP.

    :param recorded_name: the server's name in the recording
    :param name: the name of the server whose channels replace the recorded ones
    """
    main = Channels(name).main
    for recorded in recording:
        channel, text = recorded.channel, recorded.text
        if channel is not None:
            if text.partition(b" ")[0] != _REPLICATE:
                yield PlaybackLine(recorded.at_ms, text, _renamed(channel, recorded_name, name))
        elif text.startswith(_STREAM_COMMANDS) and _is_of(recorded, connection):
            yield PlaybackLine(recorded.at_ms, text, main)


def _is_of(recorded: Recorded, connection: int | None) -> bool:
    if recorded.channel is not None:
        return True
    return recorded.sender is Side.SERVER and recorded.connection == connection


def _renamed(channel: str, recorded_name: str | None, name: str) -> str:
    server, slash, rest = channel.partition("/")
    return f"{name}{slash}{rest}" if server == recorded_name else channel


_BURST = 65_536


class Burst(NamedTuple):
    """Lines that are due together, of a bounded size.

    :ivar channel: the channel on Redis; None on a TCP connection
    """

    channel: str | None
    lines: list[bytes]


#: Sends lines. Returns True once there is room for more, and False if the connection is lost.
Send = Callable[[Burst], Awaitable[bool]]


async def replay(
    scheduler: Scheduler, lines: Iterable[PlaybackLine], speed: float, send: Send
) -> int:
    """Play lines of a recording.

    :param speed: factor of the recorded speed; 0 for no delays
    :returns: the number of lines sent
    """
    began = scheduler.seconds()
    sent = 0
    for due, burst in _bursts(lines, speed):
        wait = began + due - scheduler.seconds()
        if wait > 0:
            await scheduler.sleep(wait)
        sent += len(burst.lines)
        if not await send(burst):
            break
    return sent


def _bursts(lines: Iterable[PlaybackLine], speed: float) -> Iterator[tuple[float, Burst]]:
    """Bursts and when they are due, in seconds after the first line."""
    first_ms: int | None = None
    due = 0.0
    burst = Burst(None, [])
    size = 0
    for line in lines:
        first_ms = line.at_ms if first_ms is None else first_ms
        at = (line.at_ms - first_ms) / 1000 / speed if speed else 0.0
        if burst.lines and (at > due or size >= _BURST or line.channel != burst.channel):
            yield due, burst
            burst, size = Burst(None, []), 0
        if not burst.lines:
            burst = Burst(line.channel, [])
        due = max(due, at)  # lines keep their order even if the recorder's clock was set back
        burst.lines.append(line.text)
        size += len(line.text)
    if burst.lines:
        yield due, burst


class NoServerName(InputError):
    """{path} has no SERVER line; say with --server-name what to be called"""


class NotForRedis(InputError):
    """{path} is in the {dialect} dialect, which nobody speaks on Redis: rows name no writer there, or positions do not say what came before; replay it over TCP"""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Parameters of a replay.

    :ivar server_name: the server name to use
    :ivar dialect: the dialect of the recording
    :ivar connection: the connection to replay, in a recording of several
    :ivar speed: factor of the recorded speed; 0 for no delays
    :ivar recorded_server_name: the name of the server in the recording; None where it has none
    """

    path: Path
    server_name: str
    dialect: Dialect
    connection: int | None
    speed: float
    recorded_server_name: str | None = None

    @property
    def over_tcp(self) -> Dialect:
        """The dialect for TCP clients; recordings of Redis are replayed in the modern dialect."""
        return MODERN if self.dialect is CURRENT else self.dialect

    def check_for_redis(self) -> None:
        """Check that the recording can be replayed on Redis.

        :raises NotForRedis: its dialect is not used there
        """
        if self.dialect not in (MODERN, CURRENT):
            raise NotForRedis(path=self.path, dialect=self.dialect.name)


def plan_replay(
    path: Path,
    speed: float,
    connection: int | None,
    server_name: str | None,
    dialect: Dialect | None,
) -> ReplayPlan:
    """Plan a replay; arguments that are None are detected from the recording.

    :raises NoServerName: :raises RecordingDialectUnknown: it cannot be detected from the recording
    :raises NoRecording: :raises NotARecording: :raises ScriptedRecording:
    """
    found = recording_info(read_recording(path))
    used_dialect = dialect or found.dialect
    if used_dialect is None:
        raise RecordingDialectUnknown(path=path, lines=EXAMINED_LINES)
    name = server_name or found.server_name
    if name is None:
        raise NoServerName(path=path)
    used_connection = found.connection if connection is None else connection
    return ReplayPlan(path, name, used_dialect, used_connection, speed, found.server_name)

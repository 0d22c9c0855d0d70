"""Detects the dialect, server name and connection of a recording from its first lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from synrepl.core.errors import InputError
from synrepl.tools.judge.judge import Recorded
from synrepl.wire.codec import parse_line
from synrepl.wire.commands import Server
from synrepl.wire.dialects import CURRENT, LEGACY, MODERN, TRANSITIONAL, Dialect, Side
from synrepl.wire.errors import RemoteProtocolError

#: Number of lines that are examined.
EXAMINED_LINES = 20_000

#: TCP dialects by the number of arguments of their POSITION.
_BY_ARGUMENTS = {2: LEGACY, 3: TRANSITIONAL, 4: MODERN}


class RecordingDialectUnknown(InputError):
    """{path} does not tell its dialect: there is neither POSITION nor REPLICATE in its first {lines} lines; say which one it is with --dialect"""


@dataclass(frozen=True, slots=True)
class RecordingInfo:
    """Properties detected from the first lines of a recording.

    :ivar dialect: None if it is unknown
    :ivar server_name: the name in the first SERVER line or in the channel; None if there is none
    :ivar connection: in a recording of several connections, the first one with a SERVER line
    """

    dialect: Dialect | None
    server_name: str | None
    connection: int | None


def recording_info(recording: Iterable[Recorded]) -> RecordingInfo:
    """Detect the properties of a recording from its beginning.

    A REPLICATE with arguments is legacy. After one without arguments, the POSITIONs in its answer
    show the dialect. Recordings of Redis have channels.
    """
    dialect: Dialect | None = None
    has_replicate = False
    server: tuple[str, int | None] | None = None
    for recorded in islice(recording, EXAMINED_LINES):
        if recorded.channel is not None:
            return RecordingInfo(CURRENT, recorded.channel.partition("/")[0], None)
        verb, _, rest = recorded.text.partition(b" ")
        if recorded.sender is Side.CLIENT and verb == b"REPLICATE":
            has_replicate = True
            if rest.strip():
                dialect = LEGACY
        elif recorded.sender is Side.SERVER and verb == b"POSITION" and dialect is None:
            dialect = _BY_ARGUMENTS.get(len(rest.split(b" ")))
        elif recorded.sender is Side.SERVER and verb == b"SERVER" and server is None:
            name = _server_name(recorded.text)
            server = None if name is None else (name, recorded.connection)
        if dialect is not None and server is not None:
            break
    name, connection = (None, None) if server is None else server
    return RecordingInfo(dialect or (MODERN if has_replicate else None), name, connection)


def _server_name(line: bytes) -> str | None:
    try:
        command = parse_line(line, MODERN, Side.SERVER)
    except RemoteProtocolError:
        return None
    return command.name if isinstance(command, Server) else None

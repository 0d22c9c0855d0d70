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
LOOK_AT = 20_000

#: Arguments of POSITION: each TCP dialect has one more than the one before.
_BY_ARGUMENTS = {2: LEGACY, 3: TRANSITIONAL, 4: MODERN}


class RecordingDialectUnknown(InputError):
    """{path} does not tell its dialect: there is neither POSITION nor REPLICATE in its first {lines} lines; say which one it is with --dialect"""


@dataclass(frozen=True, slots=True)
class RecordingInfo:
    """What the first lines of a recording show.

    :ivar dialect: None when they do not tell
    :ivar server_name: what the server calls itself, if it does
    :ivar connection: the first one with a beginning, of recordings of several
    """

    dialect: Dialect | None
    server_name: str | None
    connection: int | None


def recording_info(recording: Iterable[Recorded]) -> RecordingInfo:
    """Look at the beginning of a recording.

    A REPLICATE with arguments is legacy; what a bare one is shows in the
    POSITIONs that answer it. Redis has channels.
    """
    dialect: Dialect | None = None
    asked = False
    greeted: tuple[str, int | None] | None = None
    for recorded in islice(recording, LOOK_AT):
        if recorded.channel is not None:
            return RecordingInfo(CURRENT, recorded.channel.partition("/")[0], None)
        verb, _, rest = recorded.text.partition(b" ")
        if recorded.sender is Side.CLIENT and verb == b"REPLICATE":
            asked = True
            if rest.strip():
                dialect = LEGACY
        elif recorded.sender is Side.SERVER and verb == b"POSITION" and dialect is None:
            dialect = _BY_ARGUMENTS.get(len(rest.split(b" ")))
        elif recorded.sender is Side.SERVER and verb == b"SERVER" and greeted is None:
            name = _server_name(recorded.text)
            greeted = None if name is None else (name, recorded.connection)
        if dialect is not None and greeted is not None:
            break
    name, connection = (None, None) if greeted is None else greeted
    return RecordingInfo(dialect or (MODERN if asked else None), name, connection)


def _server_name(line: bytes) -> str | None:
    try:
        command = parse_line(line, MODERN, Side.SERVER)
    except RemoteProtocolError:
        return None
    return command.name if isinstance(command, Server) else None

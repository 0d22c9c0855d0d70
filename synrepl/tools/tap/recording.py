"""A recording: one JSON object per line, in the order in which the recorder saw them.

    {"t": 1795168338395, "dir": "S", "line": "RDATA caches 4 [\\"get_user_by_id\\", ...]"}

``t`` is in ms since the epoch. ``dir`` is ``S`` (sent by the server), ``C`` (sent by the client),
``-`` (a note of the recorder) or ``S-partial`` (an unfinished line of the server). In a recording
of several connections each line has the number ``conn`` of its connection. Lines from Redis have a
``channel`` in place of ``dir``. Bytes that are not UTF-8 are kept with ``surrogateescape``.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import msgspec

from synrepl.core.errors import InputError, Unavailable
from synrepl.tools.judge.judge import Recorded
from synrepl.wire.codec import parse_line
from synrepl.wire.commands import Server
from synrepl.wire.dialects import CURRENT, LEGACY, MODERN, TRANSITIONAL, Dialect, Side
from synrepl.wire.errors import RemoteProtocolError

#: Maximum length of a line of a file, in bytes. The longest line that ``tap record`` accepts fits,
#: even with every byte escaped.
LONGEST = 2**27

_SIDES = {"S": Side.SERVER, "C": Side.CLIENT}
_PARTIAL = "S-partial"


class _RecordingLine(msgspec.Struct):
    t: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    line: str
    dir: Literal["S", "C", "-", "S-partial"] | None = None
    conn: int | None = None
    channel: str | None = None


class NoRecording(InputError):
    """cannot open {path}: {reason}"""


class NotARecording(InputError):
    """{path}, line {line}: {reason}; each line of a recording is an object with t, dir and line, or with a channel in place of dir"""


class ScriptedRecording(InputError):
    """{path} is made of scripted cases, with lines that are wrong on purpose; only what peers said by themselves can be judged or replayed"""


def read_recording(path: Path) -> Generator[Recorded, None, None]:
    """The lines of a recording, ``.gz`` or not, one at a time.

    :raises NoRecording: :raises NotARecording: :raises ScriptedRecording:
    """
    for number, line in enumerate(_lines(path), 1):
        if len(line) > LONGEST:
            raise NotARecording(path=path, line=number, reason=f"longer than {LONGEST} bytes")
        yield _recorded(path, number, line)


class RecordingFile:
    """A new recording, readable by its owner alone.

    Every call flushes complete lines to the file. It can therefore be read while it grows, and
    loses nothing when the process is killed.

    :param path: compressed if it ends in ``.gz``
    :param hide: rewrites lines of the protocol, see :mod:`~synrepl.tools.tap.pseudonyms`
    :ivar lines: number of lines in the file
    :raises NoRecording: it exists already, or cannot be created
    """

    def __init__(self, path: Path, hide: Callable[[bytes], bytes] | None = None) -> None:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise NoRecording(path=path, reason=error.strerror) from None
        self._raw = os.fdopen(descriptor, "wb")
        self._zip = gzip.GzipFile("", "wb", 6, self._raw) if path.suffix == ".gz" else None
        self._hide = hide
        self.path = path
        self.lines = 0

    def write(self, at_ms: int, direction: str, lines: Sequence[bytes]) -> None:
        """Add lines of a connection.

        :param direction: ``S``, ``C``, ``-`` or ``S-partial``
        :raises OSError: the disk is full
        """
        if direction in _SIDES:
            lines = self._hidden(lines)
        elif self._hide is not None and direction == _PARTIAL:
            lines = [b""]  # a truncated ID cannot be recognised
        self._add(at_ms, "dir", direction, lines)

    def publish(self, at_ms: int, channel: str, lines: Sequence[bytes]) -> None:
        """Add lines that were published on Redis.

        :param channel: its name in the recording
        :raises OSError: the disk is full
        """
        self._add(at_ms, "channel", channel, self._hidden(lines))

    def close(self) -> None:
        """Close the file."""
        if self._zip is not None:
            self._zip.close()
        self._raw.close()

    def _hidden(self, lines: Sequence[bytes]) -> Sequence[bytes]:
        return lines if self._hide is None else [self._hide(line) for line in lines]

    def _add(self, at_ms: int, key: str, value: str, lines: Sequence[bytes]) -> None:
        data = b"".join([_line_of(at_ms, key, value, line) for line in lines])
        if self._zip is not None:
            self._zip.write(data)
            self._zip.flush()
        else:
            self._raw.write(data)
        self._raw.flush()
        self.lines += len(lines)


def _line_of(at_ms: int, key: str, value: str, line: bytes) -> bytes:
    text = line.decode("utf-8", "surrogateescape")
    return json.dumps({"t": at_ms, key: value, "line": text}).encode() + b"\n"


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while line := file.readline(LONGEST + 1):
                yield line
    except EOFError:
        return  # compressed, and still being written: everything so far was read
    except (OSError, zlib.error) as error:  # including files that are not gzip
        raise NoRecording(path=path, reason=_reason(error)) from None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _recorded(path: Path, number: int, line: bytes) -> Recorded:
    try:
        value = json.loads(line)  # accepts the lone surrogates of surrogateescape
        if isinstance(value, dict) and "case" in value:
            raise ScriptedRecording(path=path)
        found = msgspec.convert(value, _RecordingLine)
        text = found.line.encode("utf-8", "surrogateescape")
        if found.channel is not None:
            found.channel.encode()
    except msgspec.ValidationError as error:
        raise NotARecording(path=path, line=number, reason=str(error)) from None
    except (ValueError, RecursionError):
        raise NotARecording(path=path, line=number, reason="it is no JSON") from None
    if found.channel is not None:
        return Recorded(number, found.t, None, text, None, found.channel)
    if found.dir is None:
        raise NotARecording(path=path, line=number, reason="it has neither dir nor channel")
    if found.dir == _PARTIAL:
        text = b""
    return Recorded(number, found.t, _SIDES.get(found.dir), text, found.conn)


class RecordingEnded(Unavailable):
    """the connection to {where} has ended: {reason}; what was said until then is in {path}"""


class RecordingNotWritable(Unavailable):
    """cannot write to {path}: {reason}; what was said until then is in it"""


class RecordingSource(Protocol):
    """Traffic that can be recorded."""

    async def record(
        self,
        reactor: Any,
        recording: RecordingFile,
        seconds: float | None,
        notify: Callable[[str], object],
    ) -> None:
        """Record until the connection ends, the coroutine is cancelled, or ``seconds`` have passed.

        :param notify: prints a sentence about progress
        :raises Unavailable: the connection cannot be made; the recording is empty
        :raises RecordingEnded: the other side ended the connection
        :raises RecordingNotWritable: the recording cannot be written, such as on a full disk
        """


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

"""Kinds of command arguments: how each is parsed from a line and written to it.

Reading refuses bytes that are not of the kind. Writing refuses values that could
not be read again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from synrepl.core.tokens import MAX_TOKEN
from synrepl.wire.commands import Key
from synrepl.wire.errors import LocalProtocolError, RemoteProtocolError

#: The longest name of a stream, a writer or an instance, in characters.
MAX_NAME_LENGTH = 255

_WORD = re.compile(r"[^\x00-\x20\x7f]+")
_WORD_RULE = "one or more characters, none of them a space or a control character"
_NAME_RULE = f"{_WORD_RULE}, at most {MAX_NAME_LENGTH}"
_SHOWN = 40  # maximum length of a refused value in a message


class BadWord(RemoteProtocolError):
    """{where} {value!r} is not a word: {rule}"""


class BadNumber(RemoteProtocolError):
    """{where} {value!r} is not a plain decimal number between {least} and 2^63-1"""


class BadState(RemoteProtocolError):
    """{where} {value!r} is neither 'start' nor 'end'"""


class BadCells(RemoteProtocolError):
    """{where} are not the JSON that is needed: {reason}"""


class EmptyRow(RemoteProtocolError):
    """{where} is empty: a row is a JSON value"""


class Unwritable(LocalProtocolError):
    """{where} {value} cannot be written: {reason}"""


@dataclass(frozen=True, slots=True, eq=False)
class ArgumentKind:
    """One kind of argument.

    :ivar read: ``(bytes, where)`` to the value; raises a :class:`RemoteProtocolError`
    :ivar write: ``(value, where)`` to bytes; raises :class:`Unwritable`
    :ivar takes_rest: whether the argument extends to the end of the line, spaces included
    :ivar takes_none: whether the absence of a value can be written
    """

    read: Callable[[bytes, str], Any]
    write: Callable[[Any, str], bytes]
    takes_rest: bool = False
    takes_none: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """One argument of a command, and the attributes it holds: one, or several in a JSON array."""

    attributes: tuple[str, ...]
    kind: ArgumentKind

    @property
    def title(self) -> str:
        """Its name in usage and error texts."""
        return ",".join(self.attributes)


def _unwritable(value: object, where: str, reason: str) -> Unwritable:
    return Unwritable(where=where, value=repr(value)[:_SHOWN], reason=reason)


def _encode(value: object, where: str) -> bytes:
    if not isinstance(value, str):
        raise _unwritable(value, where, "a str is needed")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise _unwritable(value, where, "it is not valid Unicode") from None


def _one_line(data: bytes, value: object, where: str) -> bytes:
    # The reader would take a CR at the end for part of the line's terminator.
    if b"\n" in data or data.endswith(b"\r"):
        raise _unwritable(value, where, "it holds the end of a line")
    return data


# Words


#: Interned names: all lines share one object, and a known name need not be validated again.
#: It stops growing when it is full.
KNOWN_NAMES: dict[bytes, str] = {}
_MOST_KNOWN_NAMES = 4096


def _read_name(raw: bytes, where: str) -> str:
    name = raw.decode()
    if len(name) > MAX_NAME_LENGTH or not _WORD.fullmatch(name):
        raise BadWord(where=where, value=_shown(raw), rule=_NAME_RULE)
    if len(KNOWN_NAMES) < _MOST_KNOWN_NAMES:
        return KNOWN_NAMES.setdefault(raw, name)
    return KNOWN_NAMES.get(raw, name)


def _write_name(value: object, where: str) -> bytes:
    raw = _write_word(value, where)
    if len(str(value)) > MAX_NAME_LENGTH:
        raise _unwritable(value, where, f"it is longer than {MAX_NAME_LENGTH} characters")
    return raw


def _read_word(raw: bytes, where: str) -> str:
    text = raw.decode()
    if not _WORD.fullmatch(text):
        raise BadWord(where=where, value=_shown(raw), rule=_WORD_RULE)
    return text


def _write_word(value: object, where: str) -> bytes:
    raw = _encode(value, where)
    if not _WORD.fullmatch(str(value)):
        raise _unwritable(value, where, "one word is needed")
    return raw


def _read_device(raw: bytes, where: str) -> str | None:
    return None if raw == b"None" else _read_word(raw, where)


def _write_device(value: object, where: str) -> bytes:
    if value == "None":
        raise _unwritable(value, where, "it would be read as no device")
    return b"None" if value is None else _write_word(value, where)


def _read_state(raw: bytes, where: str) -> bool:
    if raw not in (b"start", b"end"):
        raise BadState(where=where, value=_shown(raw))
    return raw == b"start"


def _write_state(value: object, where: str) -> bytes:
    if not isinstance(value, bool):
        raise _unwritable(value, where, "a bool is needed")
    return b"start" if value else b"end"


# Numbers


def _read_number(raw: bytes, where: str, least: int = 0) -> int:
    digits = raw[1:] if least < 0 and raw.startswith(b"-") else raw
    if digits.isdigit() and len(digits) <= 19:
        value = int(raw)
        if least <= value <= MAX_TOKEN:
            return value
    raise BadNumber(where=where, value=_shown(raw), least=least)


def _write_number(value: object, where: str, least: int = 0) -> bytes:
    if type(value) is not int or not least <= value <= MAX_TOKEN:
        raise _unwritable(value, where, f"an int between {least} and 2^63-1 is needed")
    return b"%d" % value


_LEAST_SIGNED = -MAX_TOKEN - 1


def _read_signed(raw: bytes, where: str) -> int:
    return _read_number(raw, where, _LEAST_SIGNED)


def _write_signed(value: object, where: str) -> bytes:
    return _write_number(value, where, _LEAST_SIGNED)


def _read_row_token(raw: bytes, where: str) -> int | None:
    return None if raw == b"batch" else _read_number(raw, where)


def _write_row_token(value: object, where: str) -> bytes:
    return b"batch" if value is None else _write_number(value, where)


def _read_start(raw: bytes, where: str) -> int | None:
    return None if raw in (b"NOW", b"now") else _read_signed(raw, where)


def _write_start(value: object, where: str) -> bytes:
    return b"NOW" if value is None else _write_signed(value, where)


# The rest of a line


def _read_text(raw: bytes, where: str) -> str:
    return raw.decode()


def _write_text(value: object, where: str) -> bytes:
    return _one_line(_encode(value, where), value, where)


def _read_row(raw: bytes, where: str) -> bytes:
    if not raw or raw.isspace():
        raise EmptyRow(where=where)
    return raw


def _write_row(value: object, where: str) -> bytes:
    if not isinstance(value, bytes) or not value or value.isspace():
        raise _unwritable(value, where, "the bytes of a JSON value are needed")
    try:
        value.decode()
    except UnicodeDecodeError:
        raise _unwritable(value, where, "it is not UTF-8") from None
    return _one_line(value, value, where)


def _json_array(shape: Any, separators: tuple[str, str]) -> ArgumentKind:
    decoder = msgspec.json.Decoder(shape)

    def read(raw: bytes, where: str) -> Any:
        try:
            return decoder.decode(raw)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise BadCells(where=where, reason=str(error) or type(error).__name__) from None

    def write(value: object, where: str) -> bytes:
        # ASCII, as real servers send it. Decoding it again finds wrong types.
        try:
            data = json.dumps(value, separators=separators, allow_nan=False).encode()
            decoder.decode(data)
        except (TypeError, ValueError, RecursionError, msgspec.DecodeError) as error:
            raise Unwritable(where=where, value="", reason=str(error)) from None
        return data

    return ArgumentKind(read, write, takes_rest=True)


def _shown(raw: bytes) -> str:
    return raw[:_SHOWN].decode(errors="replace")


_Millis = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN)]
_Seen = tuple[str, str, str, str | None, _Millis]
_Lock = tuple[str, str, str]

# JSON between commas and colons: with spaces up to Synapse 1.19, compact after it.
SPACED = (", ", ": ")
COMPACT = (",", ":")

NAME = ArgumentKind(_read_name, _write_name)
WORD = ArgumentKind(_read_word, _write_word)
DEVICE = ArgumentKind(_read_device, _write_device, takes_none=True)
STATE = ArgumentKind(_read_state, _write_state)
NUMBER = ArgumentKind(_read_number, _write_number)
SIGNED = ArgumentKind(_read_signed, _write_signed)
ROW_TOKEN = ArgumentKind(_read_row_token, _write_row_token)
START = ArgumentKind(_read_start, _write_start)
TEXT = ArgumentKind(_read_text, _write_text, takes_rest=True)
ROW = ArgumentKind(_read_row, _write_row, takes_rest=True)
KEYS_SPACED = _json_array(tuple[Key, ...], SPACED)
SEEN_SPACED = _json_array(_Seen, SPACED)
SEEN_COMPACT = _json_array(_Seen, COMPACT)
LOCK = _json_array(_Lock, COMPACT)

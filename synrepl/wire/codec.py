"""Parses lines into commands and writes them: the only code that splits a line on spaces.

Decisions where the seeds are silent:

- one CR at the end of a line belongs to its terminator;
- a command without arguments may end in a space, and is written with one: real
  workers send ``REPLICATE`` like that, and the oldest releases accept nothing else;
- the caller skips blank lines (:func:`is_blank`); a line of spaces is not blank and
  is refused, as is any other extra space;
- numbers are plain decimals: no ``+``, no ``_``, no spaces around them.
"""

from __future__ import annotations

from synrepl.wire.commands import Command, Rdata
from synrepl.wire.dialects import CommandLayout, Dialect, Side
from synrepl.wire.errors import LocalProtocolError, RemoteProtocolError
from synrepl.wire.fields import KNOWN_NAMES, Field

_SHOWN = 40
_SHORTEST_RISKY_NUMBER = 19  # digits; a shorter number is below 2^63
_CR = 0x0D
_SERVER = (
    Side.SERVER
)  # a module constant: looking it up in the class is slower than splitting a name


class UnknownCommand(RemoteProtocolError):
    """invalid command: {verb!r} is not a command of the {dialect} dialect"""


class WrongSide(RemoteProtocolError):
    """invalid command: {verb} is not for the {side} to send"""


class WrongArguments(RemoteProtocolError):
    """failed to parse {verb}: the {dialect} dialect has '{usage}', not {count} arguments"""


class NotUtf8(RemoteProtocolError):
    """the line is not UTF-8 at byte {at} ({reason})"""


class NotInDialect(LocalProtocolError):
    """{verb} cannot be written: the {dialect} dialect has no such command"""


def is_blank(line: bytes) -> bool:
    """Whether the line is to be ignored (seed: TCP replication, "Blank lines are ignored")."""
    return not line or line == b"\r"


def parse_line(line: bytes, dialect: Dialect, sender: Side) -> Command:
    """Parse one line, without its newline.

    :raises RemoteProtocolError: it is not a line that ``sender`` may send
    """
    if sends_rdata(sender, dialect):
        rdata = quick_rdata(line, dialect)
        if rdata is not None:
            return rdata
    if line.endswith(b"\r"):
        line = line[:-1]
    if not line.isascii():
        _check_utf8(line)
    verb, _, rest = line.partition(b" ")
    layouts = dialect.layouts.get(verb)
    if layouts is None:
        raise UnknownCommand(verb=_shown(verb), dialect=dialect.name)
    if sender not in layouts[0].senders:
        raise WrongSide(verb=_shown(verb), side=sender.value)
    for layout in layouts:
        pieces = _pieces(layout, rest)
        if len(pieces) == len(layout.fields):
            return _read(layout, pieces)
    raise WrongArguments(
        verb=_shown(verb),
        dialect=dialect.name,
        usage="' or '".join(layout.usage for layout in layouts),
        count=len(rest.split(b" ")) if rest else 0,
    )


def write_line(command: Command, dialect: Dialect) -> bytes:
    """Write a command as a line, without the newline.

    :raises LocalProtocolError: the dialect has no such command, or an argument
        could not be parsed again
    """
    layouts = dialect.layouts.get(command.verb.encode())
    if layouts is None:
        raise NotInDialect(verb=command.verb, dialect=dialect.name)
    layout = _layout_for(command, layouts)
    arguments = b" ".join([_write(command, field) for field in layout.fields])
    return b"%s %s" % (command.verb.encode(), arguments)


def rdata_prefix(stream: str, writer: str | None, dialect: Dialect) -> bytes:
    """The common beginning of a writer's RDATA lines: append the token, a space and the row.

    :raises LocalProtocolError: a name is missing or not a single word
    """
    sample = b"0 []"
    line = write_line(Rdata(stream, writer, 0, b"[]"), dialect)
    return line[: -len(sample)]


def may_send(command: Command, dialect: Dialect, sender: Side) -> bool:
    """Whether ``sender`` may send this command in ``dialect``."""
    layouts = dialect.layouts.get(command.verb.encode())
    return layouts is not None and sender in layouts[0].senders


def sends_rdata(sender: Side, dialect: Dialect) -> bool:
    """Whether ``sender`` may send RDATA, so that :func:`quick_rdata` applies."""
    return sender is _SERVER or not dialect.has_sides


def quick_rdata(line: bytes, dialect: Dialect) -> Rdata | None:
    """Fast path for ordinary RDATA lines of a sender that :func:`sends_rdata`.

    Returns ``None`` for every other line; :func:`parse_line` then parses or refuses it.
    """
    parts = line.split(b" ", 4 if dialect.per_writer else 3)
    if len(parts) == 5:
        verb, stream, by, token, row = parts
        writer = KNOWN_NAMES.get(by)
        if writer is None:
            return None
    elif len(parts) == 4 and not dialect.per_writer:
        verb, stream, token, row = parts
        writer = None
    else:
        return None
    name = KNOWN_NAMES.get(stream)
    if name is None or verb != b"RDATA" or not line.isascii():
        return None
    if not row or row.isspace() or row[-1] == _CR:
        return None
    if token.isdigit() and len(token) < _SHORTEST_RISKY_NUMBER:
        return Rdata(name, writer, int(token), row)
    return Rdata(name, writer, None, row) if token == b"batch" else None


def _pieces(layout: CommandLayout, rest: bytes) -> list[bytes]:
    if not layout.fields:
        return [rest] if rest else []
    most = len(layout.fields) - 1 if layout.fields[-1].kind.takes_rest else -1
    return rest.split(b" ", most)


def _read(layout: CommandLayout, pieces: list[bytes]) -> Command:
    values: dict[str, object] = dict.fromkeys(layout.absent)
    for field, piece in zip(layout.fields, pieces, strict=True):
        value = field.kind.read(piece, f"{layout.command.verb} {field.title}")
        if len(field.attributes) == 1:
            values[field.attributes[0]] = value
        else:
            values.update(zip(field.attributes, value, strict=True))
    return layout.command(**values)


def _layout_for(command: Command, layouts: tuple[CommandLayout, ...]) -> CommandLayout:
    """The first layout whose attributes all have values, else the first."""
    for layout in layouts:
        needed = (field for field in layout.fields if not field.kind.takes_none)
        names = (name for field in needed for name in field.attributes)
        if all(getattr(command, name) is not None for name in names):
            return layout
    return layouts[0]


def _write(command: Command, field: Field) -> bytes:
    values = tuple(getattr(command, name) for name in field.attributes)
    value = values[0] if len(values) == 1 else values
    return field.kind.write(value, f"{command.verb} {field.title}")


def _check_utf8(line: bytes) -> None:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise NotUtf8(at=error.start, reason=error.reason) from None


def _shown(verb: bytes) -> str:
    return verb[:_SHOWN].decode(errors="replace")

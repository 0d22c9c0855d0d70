"""The output of ``synrepl tail``: aligned text for people, JSON for programs."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

import click
import msgspec
import orjson

from synrepl.cli.terminal import printable
from synrepl.core import jsons
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Token
from synrepl.wire.codec import write_line
from synrepl.wire.commands import Command
from synrepl.wire.dialects import Dialect


class ShownRow(NamedTuple):
    """One row, as the JSON that was sent; ``writer`` is None in a dialect without writers."""

    stream: str
    writer: str | None
    token: Token
    row: bytes


class Lines(Protocol):
    """Formats rows and commands as lines, without newlines."""

    def row(self, row: ShownRow, now: float) -> str:
        """Format a row; ``now`` is in seconds since the epoch."""

    def command(self, command: Command, now: float) -> str:
        """Format a command other than RDATA."""


class TextLines:
    """Time, stream, writer, token, row; columns grow with their contents.

    :param colour: whether to add terminal colour codes
    """

    def __init__(self, dialect: Dialect, colour: bool) -> None:
        self._dialect = dialect
        self._colour = colour
        self._widths = [12, 8, 6]

    def row(self, row: ShownRow, now: float) -> str:
        """Format a row."""
        stream, writer, token = printable(row.stream), row.writer, str(row.token)
        cells = [self._style(_clock(now), dim=True)]
        cells.append(self._style(stream.ljust(self._width(0, stream)), fg="cyan"))
        if writer is not None:
            writer = printable(writer)
            cells.append(writer.ljust(self._width(1, writer)))
        cells.append(self._style(token.rjust(self._width(2, token)), fg="green"))
        cells.append(printable(row.row.decode(errors="replace")))
        return " ".join(cells)

    def command(self, command: Command, now: float) -> str:
        """Format a command as its line on the wire."""
        line = printable(write_line(command, self._dialect).decode())
        return f"{self._style(_clock(now), dim=True)} {self._style(line, fg='yellow')}"

    def _width(self, column: int, text: str) -> int:
        self._widths[column] = max(self._widths[column], min(len(text), 60))
        return self._widths[column]

    def _style(self, text: str, fg: str | None = None, dim: bool | None = None) -> str:
        return click.style(text, fg=fg, dim=dim) if self._colour else text


class JsonLines:
    """``{"stream", "writer", "token", "row"}``, or ``{"command", …}`` with its attributes.

    A row that is not JSON, which only a broken master sends, is shown as text
    under ``malformed`` instead of ``row``.
    """

    def row(self, row: ShownRow, now: float) -> str:
        """Format a row."""
        shown = {"stream": row.stream, "writer": row.writer, "token": row.token}
        try:
            jsons.decode(row.row, "a row")
        except SynreplError:
            malformed = {**shown, "malformed": row.row.decode(errors="replace")}
            return jsons.encode(malformed).decode()
        return jsons.encode({**shown, "row": orjson.Fragment(row.row)}).decode()

    def command(self, command: Command, now: float) -> str:
        """Format a command."""
        shown = {"command": command.verb, **msgspec.structs.asdict(command)}
        return jsons.encode(shown).decode()


def _clock(now: float) -> str:
    return f"{time.strftime('%H:%M:%S', time.localtime(now))}.{int(now * 1000) % 1000:03d}"

"""Terminal output, and Ctrl-C."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
import rich.console
from rich.table import Table

from synrepl.cli.conventions import console


def printable(text: str) -> str:
    """Text that may come from a stranger, so that it cannot steer a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def plain_table(*headings: str) -> Table:
    """A table without lines; a heading that ends in ``>`` is of a column of numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        right = heading.endswith(">")
        table.add_column(heading.removesuffix(">"), justify="right" if right else "left")
    return table


def show(*parts: rich.console.RenderableType) -> None:
    """Print parts below one another; where there is no terminal, nothing is cut off or padded."""
    output = console()
    if output.is_terminal:
        output.print(*parts, sep="\n")
        return
    output.width = 10_000
    with output.capture() as captured:
        output.print(*parts, sep="\n")
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def write_out(data: bytes) -> None:
    """Write to stdout past Python's buffer, whose lock a thread that ends with the process would keep.

    :raises BrokenPipeError: nobody reads any more
    """
    descriptor, rest = sys.stdout.fileno(), memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # whoever shares the descriptor has made it so
            select.select((), (descriptor,), ())


@contextmanager
def interruptible() -> Iterator[None]:
    """For a command without reactor: Ctrl-C exits with 130, silently."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)

"""Terminal output, values as table cells, Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click
import rich.console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from synrepl.cli.conventions import console

#: Seconds until a signal is sent again that came during a finalizer.
_REPEAT_S = 0.05


def printable(text: str) -> str:
    """Escape control characters, so that untrusted text cannot control the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def plain_table(*headings: str) -> Table:
    """A table without borders; a heading that ends in ``>`` right-aligns its column."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        right = heading.endswith(">")
        table.add_column(heading.removesuffix(">"), justify="right" if right else "left")
    return table


def bulleted(*sentences: str) -> Iterator[rich.console.RenderableType]:
    """Sentences as items of a list."""
    for sentence in sentences:
        item = Table.grid(padding=(0, 1))
        item.add_row("-", Text(sentence))
        yield Padding(item, (0, 0, 0, 2), expand=False)


def show(*parts: rich.console.RenderableType) -> None:
    """Print parts below one another; without a terminal, nothing is truncated or padded."""
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
    """Write to stdout, bypassing Python's buffer.

    A daemon thread that holds the buffer's lock would block the exit of the process.

    :raises BrokenPipeError: the reader has closed the pipe
    """
    descriptor, rest = sys.stdout.fileno(), memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # another process has made the shared descriptor non-blocking
            select.select((), (descriptor,), ())


@contextmanager
def interruptible() -> Iterator[None]:
    """Exit with 130 on Ctrl-C, silently; for commands without a reactor."""
    try:
        with _interrupts_repeated():
            yield
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


@contextmanager
def _interrupts_repeated() -> Iterator[None]:
    """Send a signal again whose exception Python could only print.

    Python calls finalizers between any two instructions, and prints what they raise instead of raising it. Those of Py4J
    talk to the JVM, so signals often come while one runs; the command would go on.
    """
    before = sys.unraisablehook
    repeated: list[tuple[threading.Timer, type[BaseException]]] = []

    def repeat(unraisable: Any) -> None:
        number = _SIGNALS.get(unraisable.exc_type)
        if number is None:
            before(unraisable)
            return
        # From a thread and later, because this, too, is within the finalizer.
        again = threading.Timer(_REPEAT_S, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
        repeated.append((again, unraisable.exc_type))

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = before
        missed = [exception for again, exception in repeated if not again.finished.is_set()]
        for again, _ in repeated:
            again.cancel()  # nobody would handle it any more
    if missed:
        raise missed[0]


def cell(value: Any) -> str:
    """Format a value; ``-`` for none."""
    return "-" if value is None or value == "" else printable(str(value))


def counted(count: int, noun: str) -> str:
    """A number with its noun, such as ``1 room`` and ``1,200 rooms``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration(seconds: Any) -> str:
    """Format seconds in a fitting unit; ``-`` for none."""
    if not isinstance(seconds, (int, float)):
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, _ = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


class _Terminated(KeyboardInterrupt):
    """SIGTERM was received.

    Py4J gives up the connection of an interrupted command for this exception only. Otherwise the next command, such as the
    one that stops Spark, waits for the job to end, and takes its answer for its own.
    """


#: Signals by the exceptions that their handlers raise.
_SIGNALS: dict[type[BaseException], int] = {
    KeyboardInterrupt: signal.SIGINT,
    _Terminated: signal.SIGTERM,
}


@contextmanager
def graceful_exit() -> Iterator[None]:
    """Exit with 130 on Ctrl-C, silently; on SIGTERM, end by that signal once Spark is stopped.

    A process that is killed at once leaves behind Spark's scratch files, and Java for a moment.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        with _interrupts_repeated():
            yield
    except _Terminated:
        # End by the signal itself: a clean exit for systemd, status 143 for a shell.
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Terminated

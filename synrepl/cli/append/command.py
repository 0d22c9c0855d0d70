"""``synrepl append``: facts from lines of JSON, each of them exactly once."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from synrepl.cli.addresses import writer_http
from synrepl.cli.append.input import BadLine, FactLine, FactReader, LineReader
from synrepl.cli.conventions import config_option
from synrepl.cli.terminal import interruptible, write_out
from synrepl.client.calls import Appended
from synrepl.client.client import Client
from synrepl.client.errors import AppendRefused, AppendUnconfirmed
from synrepl.core import jsons
from synrepl.core.errors import Unavailable
from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.config.config import load

#: What goes in one request at most: as much as a master writes in one transaction.
REQUEST_LINES = 5_000
REQUEST_BYTES = 2**20

#: Refusals that are about what was sent: the rows, or how many there are.
_ABOUT_ROWS = (400, 413)


class NoAnswer(Unavailable):
    """lines {first} to {last}: given up after {seconds:g} s ({reason}); those before are appended, these may be or may not"""


#: Told of progress: lines appended, bytes read.
ReportProgress = Callable[[int, int], object]


@click.command("append")
@config_option
@click.argument("stream")
@click.argument(
    "file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
    default="-",
)
@click.option("--url", help="Where the master listens for HTTP, when not as configured.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help="Seconds for which a request is tried again while the master is away or busy.",
)
def command(
    config: tuple[Path, ...], stream: str, file: Path, url: str | None, timeout: float
) -> None:
    """Append facts to STREAM: one JSON array a line, from FILE or stdin.

    A line is a row, and a row is a fact; a line with an array of rows is one
    fact of several rows. For each line the answer is printed, in order:
    {"stream", "writer", "ids"}. At a bad line it stops: the lines before it are
    appended, it and those after it are not.

    They are appended at the master, or with the configuration of a worker that
    writes the stream and listens for HTTP, there.

    What is tried again because the master was away is not appended twice.
    """
    loaded = load(config)
    reader = FactReader(catalogue(loaded)[stream])
    address = writer_http(loaded, stream, url)
    descriptor = 0 if str(file) == "-" else os.open(file, os.O_RDONLY)
    with (
        Client(address.url, address.secret, timeout_s=timeout) as client,
        interruptible(),
        progress(descriptor) as report_progress,
    ):
        append_lines(
            LineReader(descriptor), reader, Appender(client, stream, timeout), report_progress
        )


class Appender:
    """Sends facts to a master and prints its answers.

    :param timeout_s: for how long one request is tried
    """

    def __init__(self, client: Client, stream: str, timeout_s: float) -> None:
        self._client = client
        self._stream = stream
        self._timeout_s = timeout_s

    def append(self, facts: Sequence[FactLine]) -> None:
        """Append facts, and print an answer for each.

        :raises BadLine: the master refuses one; those before it are appended
        :raises NoAnswer: :raises SynreplError: what :meth:`.Client.append_body` raises
        """
        body = b'{"facts":[%b]}' % b",".join([fact.rows for fact in facts])
        try:
            appended = self._client.append_body(self._stream, body, len(facts))
        except AppendRefused as refused:
            if refused.status not in _ABOUT_ROWS:
                raise
            if len(facts) == 1:
                raise BadLine(number=facts[0].number, reason=refused.message) from None
            # Nothing was written; which line it is, halving finds out.
            middle = len(facts) // 2
            self.append(facts[:middle])
            self.append(facts[middle:])
        except Unavailable as error:
            raise NoAnswer(
                first=facts[0].number,
                last=facts[-1].number,
                seconds=self._timeout_s,
                reason=error.facts.get("reason", error)
                if isinstance(error, AppendUnconfirmed)
                else error,
            ) from None
        else:
            self._print(appended)

    def _print(self, appended: Appended) -> None:
        head = {"stream": appended.stream, "writer": appended.writer}
        write_out(b"".join([jsons.encode({**head, "ids": [one]}) + b"\n" for one in appended.ids]))


def append_lines(
    lines: LineReader, reader: FactReader, appender: Appender, report_progress: ReportProgress
) -> None:
    """Append every line, in requests of what is at hand.

    :raises BadLine: and what :meth:`Appender.append` raises
    """
    while waiting := lines.at_hand(REQUEST_LINES, REQUEST_BYTES):
        facts: list[FactLine] = []
        bad: BadLine | None = None
        for line in waiting:
            try:
                facts.append(reader.fact(line))
            except BadLine as error:
                bad = error
                break
        if facts:
            appender.append(facts)
            report_progress(len(facts), lines.read)
        if bad is not None:
            raise bad


@contextmanager
def progress(descriptor: int) -> Iterator[ReportProgress]:
    """A bar on stderr, when that is a terminal that shows nothing else and the input has an end."""
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or not sys.stderr.isatty() or sys.stdout.isatty():
        yield lambda rows, read: None
        return
    # It takes a while to import, which a person with a file to append does not notice.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[lines]:,} lines"),
        TextColumn("{task.fields[rate]:,.0f}/s"),
        TimeRemainingColumn(),
    )
    begun = time.monotonic()
    done = 0
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False) as bar:
        task = bar.add_task("", total=about.st_size, lines=0, rate=0.0)

        def report_progress(lines: int, read: int) -> None:
            nonlocal done
            done += lines
            rate = done / max(time.monotonic() - begun, 1e-3)
            bar.update(task, completed=read, lines=done, rate=rate)

        yield report_progress

"""``synrepl append``: appends facts from lines of JSON, each exactly once."""

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

#: The limits of one request: as much as a master writes in one transaction.
REQUEST_LINES = 5_000
REQUEST_BYTES = 2**20

#: Statuses of refusals that concern the rows sent, or their number.
_ABOUT_ROWS = (400, 413)


class NoAnswer(Unavailable):
    """lines {first} to {last}: given up after {seconds:g} s ({reason}); those before are appended, these may be or may not"""


#: Reports progress: lines appended, bytes read.
ReportProgress = Callable[[int, int], object]


@click.command("append")
@config_option
@click.argument("stream")
@click.argument(
    "file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
    default="-",
)
@click.option("--url", help="URL of the master's HTTP listener. Default: as configured.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help="Seconds to retry a request while the master is unreachable or busy.",
)
def command(
    config: tuple[Path, ...], stream: str, file: Path, url: str | None, timeout: float
) -> None:
    """Append facts to STREAM: one JSON array per line, from FILE or stdin.

    A line is a row, and each row becomes a fact; a line with an array of rows is
    one fact of several rows. For each line, in order, the answer is printed:
    {"stream", "writer", "ids"}. The command stops at a bad line: the lines before
    it are appended, that line and those after it are not.

    Facts are appended at the master; with the configuration of a worker that
    writes the stream and listens for HTTP, at that worker.

    Requests that are retried are not appended twice.
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

    :param timeout_s: how long to retry one request, in seconds
    """

    def __init__(self, client: Client, stream: str, timeout_s: float) -> None:
        self._client = client
        self._stream = stream
        self._timeout_s = timeout_s

    def append(self, facts: Sequence[FactLine]) -> None:
        """Append facts, and print an answer for each.

        :raises BadLine: the master refuses a line; the lines before it are appended
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
            # Nothing was written. Bisect to find the line that is refused.
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
        write_out(
            b"".join(
                [jsons.encode({**head, "ids": [stream_id]}) + b"\n" for stream_id in appended.ids]
            )
        )


def append_lines(
    lines: LineReader, reader: FactReader, appender: Appender, report_progress: ReportProgress
) -> None:
    """Append every line; each request takes the lines that are available.

    :raises BadLine: and what :meth:`Appender.append` raises
    """
    while available := lines.take_available(REQUEST_LINES, REQUEST_BYTES):
        facts: list[FactLine] = []
        bad: BadLine | None = None
        for line in available:
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
    """A progress bar on stderr, if that is a terminal, stdout is not, and the input is a file."""
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or not sys.stderr.isatty() or sys.stdout.isatty():
        yield lambda rows, read: None
        return
    # Imported only here, because it takes a while.
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

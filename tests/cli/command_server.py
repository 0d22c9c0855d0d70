"""Runs sub-commands in forks of one process that has imported them.

Starting Python and importing a sub-command takes far longer than running most of them. Each test
process has one server, which is started by the first test that needs it: see :func:`request_fork`.

A fork runs ``python -m synrepl`` to its end, as Python would. Only the modules of the sub-command
are already imported. The reactor is not among them, because forks cannot share one.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import click

from synrepl.cli import cli
from synrepl.core.errors import SynreplError

REPOSITORY = Path(__file__).resolve().parent.parent.parent


class Request(NamedTuple):
    """A sub-command to run."""

    arguments: list[str]
    environment: dict[str, str]
    directory: str


class Fork(NamedTuple):
    """A running sub-command.

    :ivar link: receives its exit code, in decimal, when it has ended
    """

    pid: int
    link: socket.socket


def request_fork(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    directory: Path,
    streams: Sequence[int],
) -> Fork:
    """Request that a sub-command is run; blocks until it is running.

    :param streams: file descriptors for its stdin, stdout and stderr
    """
    request = Request([*arguments], {**environment}, str(directory))
    link = socket.socket(socket.AF_UNIX)
    link.connect(_server())
    socket.send_fds(link, [b"fork"], [*streams])
    link.sendall(f"{json.dumps(request)}\n".encode())
    return Fork(int(_line(link)), link)


@cache
def _server() -> str:
    """The socket of this process's server."""
    stack = ExitStack()
    atexit.register(stack.close)
    path = Path(stack.enter_context(TemporaryDirectory(prefix="synrepl-test-")), "socket")
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-m", __name__, path],
            stdin=subprocess.PIPE,  # the server ends when this is closed, which happens even if we are killed
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
    )
    assert process.stdout is not None
    if not process.stdout.readline():
        raise AssertionError("the server of commands did not start")
    return str(path)


def serve(path: str) -> tuple[Request, list[int]] | None:
    """Serve requests until stdin is closed, then return None; in a fork, return what it must run."""
    waking, wake = os.pipe()
    os.set_blocking(waking, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            readable, _, _ = select.select([0, waking, listening], [], [])
            if waking in readable:
                os.read(waking, 4096)
                _report_ended(running)
            if listening in readable:
                link, _ = listening.accept()
                _, streams, _, _ = socket.recv_fds(link, len(b"fork"), 3)
                request = Request(*json.loads(_line(link)))
                _import(request.arguments)
                gc.freeze()
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for end in waking, wake:
                        os.close(end)
                    for other in link, *running.values():
                        other.close()
                    return request, streams
                for stream in streams:
                    os.close(stream)
                running[pid] = link
                link.sendall(f"{pid}\n".encode())
            if 0 in readable:
                return None


def run(request: Request, streams: Sequence[int]) -> None:
    """Run the command in this process."""
    os.environ.clear()
    os.environ.update(request.environment)
    time.tzset()
    os.chdir(request.directory)
    sys.path[0] = request.directory
    for descriptor, stream in enumerate(streams):
        os.dup2(stream, descriptor)
        os.close(stream)
    sys.argv[1:] = request.arguments
    runpy.run_module("synrepl", run_name="__main__", alter_sys=True)


def _import(arguments: list[str]) -> None:
    """Import the sub-command here, so that forks need not."""
    command: click.Command | None = cli
    for name in arguments:
        if not isinstance(command, click.Group):
            break
        # The fork reports the error.
        with suppress(SynreplError, click.ClickException, ImportError):
            command = command.get_command(click.Context(command), name)
    if "twisted.internet.reactor" in sys.modules:
        raise AssertionError(f"{arguments[0]} imports the reactor before it runs")


def _line(link: socket.socket) -> bytes:
    """Read a line."""
    line = b""
    while not line.endswith(b"\n"):
        data = link.recv(65536)
        if not data:
            raise ConnectionError("the server of commands has gone")
        line += data
    return line


def _report_ended(running: dict[int, socket.socket]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with running.pop(pid) as link, suppress(OSError):
                link.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    asked = serve(sys.argv[1])
    if asked is not None:
        run(*asked)

"""A server as a child process: started unprivileged, monitored, and reliably ended.

The child and its descendants inherit the write end of a pipe, the *lifeline*. Nothing is
written to it. It reports end of file once the last of them is gone, orphans included;
only then can their files be used again.
"""

from __future__ import annotations

import os
import pwd
import select
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL, Signals
from typing import IO, NamedTuple, Self

from synrepl.core.errors import StorageError
from synrepl.storage.launch import guard


class Unstoppable(StorageError):
    """process {pid} ({program}) does not end, not even when killed; look at it with 'ps -fp {pid}'"""


class Account(NamedTuple):
    """The user and group that a program runs as."""

    uid: int
    gid: int
    name: str


def own_account() -> Account:
    """The account of this process; a user without a passwd entry is named by its number."""
    try:
        return _account(pwd.getpwuid(os.geteuid()))
    except KeyError:
        return Account(os.geteuid(), os.getegid(), str(os.geteuid()))


def unprivileged(owned: Sequence[Path], names: Sequence[str]) -> Account:
    """The account for a server that refuses to run as root.

    :param owned: the owner of the first of these paths that exists and is not root's
    :param names: otherwise, the first of these users that exists
    :returns: the account of this process if it is not root
    """
    if os.geteuid() != 0:
        return own_account()
    for path in owned:
        if path.exists() and path.stat().st_uid != 0:
            with suppress(KeyError):
                return _account(pwd.getpwuid(path.stat().st_uid))
    for name in names:
        with suppress(KeyError):
            return _account(pwd.getpwnam(name))
    return Account(65534, 65534, "nobody")


def guarded(
    account: Account, program: Path, arguments: Sequence[str], directory: Path, death: Signals
) -> list[str]:
    """The command line that runs ``program`` in ``directory`` as ``account``.

    :param death: signal that it gets when the thread that started it ends
    """
    return [
        sys.executable,
        "-I",
        "-S",
        guard.__file__,
        *(str(number) for number in (account.uid, account.gid, int(death), os.getpid())),
        str(directory),
        str(program),
        *arguments,
    ]


class Child:
    """A running server.

    The server ends with the thread that started it, see :mod:`.guard`.

    :param command: from :func:`guarded`
    :param output: file for standard output and error
    """

    def __init__(self, command: Sequence[str], output: IO[bytes]) -> None:
        self._lifeline, other_end = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                pass_fds=(other_end,),
                start_new_session=True,  # so that the interrupt key does not reach it
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(other_end)
        self._program = command[9] if len(command) > 9 else command[0]

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    def fileno(self) -> int:
        """The lifeline: readable once all processes are gone; -1 after that was noticed."""
        return self._lifeline

    def gone(self, timeout_s: float = 0.0) -> bool:
        """Wait until it and all its descendants are gone; False on timeout."""
        if self._lifeline < 0:
            return True
        lifeline = select.poll()
        lifeline.register(self._lifeline, select.POLLIN | select.POLLHUP)
        if not lifeline.poll(timeout_s * 1000):
            return False
        self._process.wait()
        os.close(self._lifeline)
        self._lifeline = -1
        return True

    def status(self) -> str:
        """How it ended, for messages."""
        code = self._process.returncode
        if code is None:
            return "still running"
        return f"killed by {Signals(-code).name}" if code < 0 else f"exit status {code}"

    def end(self, steps: Sequence[tuple[Signals, float]]) -> None:
        """Send signals in turn until all processes are gone, with a wait in seconds after each.

        :raises Unstoppable: it survived all of them
        """
        for signal, patience_s in steps:
            if not self.gone():
                self._process.send_signal(signal)
            if self.gone(patience_s):
                return
        raise Unstoppable(pid=self.pid, program=self._program)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.gone():
            self.end([(SIGKILL, 10.0)])


def _account(entry: pwd.struct_passwd) -> Account:
    return Account(entry.pw_uid, entry.pw_gid, entry.pw_name)

"""Child processes that end with this one."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import randrange
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from typing import Self

from interop import polling
from synrepl.core.errors import Unavailable
from synrepl.storage.launch.child import Account, guarded

LOOPBACK = "127.0.0.1"

_PORTS = (10_000, 32_000)

_END_S = 20.0


class ProcessEnded(Unavailable):
    """{name} ended with {status} when it should run; the end of {output}: {tail}"""


class Process:
    """A program, as a ``with`` block that ends it by its own process ID.

    The kernel kills it when this process is killed (see :mod:`synrepl.storage.launch.guard`).

    :param name: what it is, for a person
    :param output: where its standard output and error go, appended
    :param errors: where its standard error goes instead
    :param environment: added to this process's own
    """

    def __init__(
        self,
        name: str,
        program: Path,
        arguments: Sequence[str | Path],
        directory: Path,
        output: Path,
        environment: Mapping[str, str] | None = None,
        errors: Path | None = None,
    ) -> None:
        self.name = name
        self._output = errors or output
        me = Account(os.geteuid(), os.getegid(), "")
        command = guarded(me, program, [str(part) for part in arguments], directory, SIGKILL)
        with output.open("ab") as file, self._output.open("ab") as error_file:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=error_file,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process ID."""
        return self._popen.pid

    def listens_on(self, port: int, seconds: float = 60.0) -> None:
        """Wait until it listens on a port.

        :raises ProcessEnded: it has ended instead
        :raises NotInTime: it does not listen
        """

        def connects() -> bool:
            self.still_runs()
            socket.create_connection((LOOPBACK, port), 1.0).close()
            return True

        polling.wait_until(f"{self.name} to listen on port {port}", connects, seconds)

    def still_runs(self) -> None:
        """Make sure of it.

        :raises ProcessEnded: it does not
        """
        status = self._popen.poll()
        if status is not None:
            text = self._output.read_text(errors="replace")
            tail = " | ".join(text[-1500:].splitlines()[-8:])
            raise ProcessEnded(name=self.name, status=status, output=self._output, tail=tail)

    def stop(self) -> int:
        """Ask it to end (SIGTERM) and wait; its exit status."""
        return self._end(SIGTERM)

    def kill(self) -> int:
        """Kill it (SIGKILL)."""
        return self._end(SIGKILL)

    def pause(self) -> None:
        """Stop it (SIGSTOP)."""
        self._popen.send_signal(SIGSTOP)

    def resume(self) -> None:
        """Continue it (SIGCONT)."""
        self._popen.send_signal(SIGCONT)

    def _end(self, signal: int) -> int:
        if self._popen.poll() is None:
            self._popen.send_signal(signal)
        try:
            return self._popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            return self._popen.wait(_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, and that no other caller in this process gets.

    They are below those that the kernel gives to outgoing connections, which could take one before it is used.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = randrange(*_PORTS)
        with suppress(OSError):
            if port not in _given:
                socket.create_server((LOOPBACK, port)).close()
                _given.add(port)
                ports.append(port)
    return ports

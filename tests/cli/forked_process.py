"""Runs a fork of the command server under the reactor, as ``spawnProcess`` runs a process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from twisted.internet import fdesc
from twisted.internet.abstract import FileDescriptor
from twisted.internet.error import (
    ConnectionDone,
    ProcessDone,
    ProcessExitedAlready,
    ProcessTerminated,
)
from twisted.internet.interfaces import IProcessTransport
from twisted.internet.main import CONNECTION_LOST
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.cli.command_server import request_fork


@implementer(IProcessTransport)
class ForkedProcess:
    """A sub-command in a fork, connected to a :class:`ProcessProtocol`.

    :ivar pid: the process ID of the fork
    """

    def __init__(
        self,
        reactor: Any,
        protocol: ProcessProtocol,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
    ) -> None:
        self._protocol = protocol
        (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = (
            os.pipe() for _ in range(3)
        )
        try:
            fork = request_fork(arguments, environment, directory, (stdin, stdout, stderr))
        finally:
            for end in stdin, stdout, stderr:
                os.close(end)
        self.pid = fork.pid
        self._code: int | None = None
        self._pipes: dict[int, FileDescriptor] = {
            0: _WritePipe(reactor, to_stdin, lambda: self._closed(0)),
            1: _ReadPipe(
                reactor,
                from_stdout,
                lambda data: protocol.childDataReceived(1, data),
                lambda: self._closed(1),
            ),
            2: _ReadPipe(
                reactor,
                from_stderr,
                lambda data: protocol.childDataReceived(2, data),
                lambda: self._closed(2),
            ),
        }
        self._exit_code_text = b""
        _ReadPipe(reactor, fork.link.detach(), self._exit_code_received, self._ended)
        protocol.makeConnection(self)

    def write(self, data: bytes) -> None:
        """Write to its stdin."""
        if 0 in self._pipes:
            self._pipes[0].write(data)

    def writeSequence(self, seq: Sequence[bytes]) -> None:
        """As :meth:`write`."""
        self.write(b"".join(seq))

    def writeToChild(self, childFD: int, data: bytes) -> None:
        """As :meth:`write`."""
        self._pipes[childFD].write(data)

    def closeStdin(self) -> None:
        """Close its stdin, once everything is written."""
        self.closeChildFD(0)

    def closeStdout(self) -> None:
        """Close its stdout."""
        self.closeChildFD(1)

    def closeStderr(self) -> None:
        """Close its stderr."""
        self.closeChildFD(2)

    def closeChildFD(self, descriptor: int) -> None:
        """Close one of its pipes."""
        if descriptor in self._pipes:
            self._pipes[descriptor].loseConnection()

    def loseConnection(self) -> None:
        """Close all of its pipes."""
        for descriptor in list(self._pipes):
            self.closeChildFD(descriptor)

    def signalProcess(self, signalID: str | int) -> None:
        """Send a signal, by its number or its name without ``SIG``.

        :raises ProcessExitedAlready: it has ended
        """
        number = getattr(signal, f"SIG{signalID}") if isinstance(signalID, str) else signalID
        if self._code is not None:
            raise ProcessExitedAlready
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            raise ProcessExitedAlready from None

    def _exit_code_received(self, data: bytes) -> None:
        self._exit_code_text += data

    def _ended(self) -> None:
        self._code = int(self._exit_code_text or b"255")
        self.closeStdin()
        self._report_end()

    def _closed(self, descriptor: int) -> None:
        del self._pipes[descriptor]
        self._protocol.childConnectionLost(descriptor)
        self._report_end()

    def _report_end(self) -> None:
        code = self._code
        if code is None or self._pipes:
            return
        if code < 0:
            reason: Exception = ProcessTerminated(signal=-code)
        else:
            reason = ProcessTerminated(exitCode=code) if code else ProcessDone(0)
        self._protocol.processEnded(Failure(reason))


class _Pipe(FileDescriptor):
    """An end of a pipe."""

    def __init__(self, reactor: Any, descriptor: int, closed: Callable[[], object]) -> None:
        super().__init__(reactor)
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._closed = closed
        self.connected = 1

    def fileno(self) -> int:
        return self._descriptor

    def connectionLost(self, reason: Failure) -> None:
        super().connectionLost(reason)
        os.close(self._descriptor)
        self._descriptor = -1
        self._closed()


class _ReadPipe(_Pipe):
    def __init__(
        self,
        reactor: Any,
        descriptor: int,
        received: Callable[[bytes], object],
        closed: Callable[[], object],
    ) -> None:
        super().__init__(reactor, descriptor, closed)
        self._received = received
        self.startReading()

    def loseConnection(self, _connDone: object = None) -> None:
        """Close it at once, because nothing is left to write."""
        self.stopReading()
        self.reactor.callLater(0, self._lose)

    def _lose(self) -> None:
        if self._descriptor >= 0:
            self.connectionLost(Failure(ConnectionDone()))

    def doRead(self) -> object:
        return fdesc.readFromFD(self._descriptor, self._received)


class _WritePipe(_Pipe):
    def writeSomeData(self, data: bytes) -> int | Exception:
        found: Any = fdesc.writeToFD(self._descriptor, data)
        return CONNECTION_LOST if found is None else found

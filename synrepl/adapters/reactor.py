"""The reactor as a typing protocol.

Twisted's reactors satisfy it as they are. Their own interfaces are zope's, which type
checkers do not understand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from synrepl.core.clock import Clock


class ReadDescriptor(Protocol):
    """A readable file descriptor; Twisted's ``IReadDescriptor``."""

    def fileno(self) -> int:
        """The descriptor; negative once it is closed."""

    def doRead(self) -> object:
        """Called when there is data or an end of file."""

    def connectionLost(self, reason: object) -> None:
        """Called when the reactor stops watching the descriptor because of an error."""

    def logPrefix(self) -> str:
        """A name for logs."""


class Reactor(Clock, Protocol):
    """Time, threads and file descriptors."""

    def callFromThread(self, call: Callable[..., object], *args: object) -> None:
        """Run ``call(*args)`` in the reactor's thread, in one of its next turns."""

    def addReader(self, reader: ReadDescriptor) -> object:
        """Watch a descriptor until :meth:`removeReader`."""

    def removeReader(self, reader: ReadDescriptor) -> object:
        """Stop watching; no error if it is not watched."""

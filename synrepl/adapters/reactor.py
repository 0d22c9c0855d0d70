"""What the adapters here need of a reactor, as a type that a type checker can use.

Twisted's reactors fit as they are; their own interfaces are zope's, which type
checkers do not read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from synrepl.core.clock import Clock


class ReadDescriptor(Protocol):
    """Something that waits for a file descriptor, as in ``IReadDescriptor``."""

    def fileno(self) -> int:
        """The descriptor; negative once it is closed."""

    def doRead(self) -> object:
        """Called when there is something to read, or an end of file."""

    def connectionLost(self, reason: object) -> None:
        """Called when the reactor gives the descriptor up."""

    def logPrefix(self) -> str:
        """A name for logs."""


class Reactor(Clock, Protocol):
    """Time, threads and file descriptors."""

    def callFromThread(self, call: Callable[..., object], *args: object) -> None:
        """Run ``call(*args)`` in the reactor's thread, soon."""

    def addReader(self, reader: ReadDescriptor) -> object:
        """Watch a descriptor until :meth:`removeReader`."""

    def removeReader(self, reader: ReadDescriptor) -> object:
        """Stop watching; not an error when it is not watched."""

"""Parses messages of the bus into commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from synrepl.core.log import Logger
from synrepl.wire.codec import is_blank, parse_line
from synrepl.wire.commands import Command
from synrepl.wire.dialects import CURRENT, Side
from synrepl.wire.errors import RemoteProtocolError


class SeveralLines(RemoteProtocolError):
    """a message on the bus is one line, and this one has a newline at byte {at}"""


class BusReader:
    """Parses messages, and leaves out those that this process sent itself.

    A malformed message is counted and skipped. Its sender is unknown, and closing our own
    connection would not help. If it was a line of a stream, the next POSITION shows the gap.

    :param name: the name of this process, as a writer
    :param follows_itself: keep rows and positions of the process's own writer, as over TCP: its
        handlers get them, and its acknowledgements depend on them
    :param unparsed: is offered a malformed message before it is counted as bad; returns True if
        it has handled the message
    :ivar echoes: number of own messages received
    :ivar bad: number of malformed messages; the first of each kind is logged
    """

    def __init__(
        self,
        name: str,
        log: Logger,
        follows_itself: bool = False,
        unparsed: Callable[[bytes], bool] = lambda message: False,
    ) -> None:
        self.name = name
        self._unparsed = unparsed
        self._sent: Counter[bytes] = Counter()
        self._sender_of = _author if follows_itself else _writer_or_author
        self._log = log
        self._kinds: set[type[RemoteProtocolError]] = set()
        self.echoes = 0
        self.bad = 0

    def note_sent(self, line: bytes) -> None:
        """Note a line that was sent and will be received once, unless the connection is lost.

        Such a line cannot be recognized by its author: it names none, or another process on
        whose behalf it was sent. If another process sends the very same line meanwhile, it
        does not matter which of the two is left out.
        """
        self._sent[line] += 1

    def forget_sent(self) -> None:
        """Forget all sent lines: the connection is lost, and they with it."""
        self._sent.clear()

    def commands(self, messages: Iterable[bytes]) -> list[Command]:
        """Parse messages, in order."""
        out: list[Command] = []
        name, sender_of = self.name, self._sender_of
        for message in messages:
            try:
                if self._sent and self._is_echo(message):
                    self.echoes += 1
                    continue
                if b"\n" in message:
                    raise SeveralLines(at=message.index(b"\n"))
                if is_blank(message):
                    continue
                command = parse_line(message, CURRENT, Side.CLIENT)
            except RemoteProtocolError as error:
                if not self._unparsed(message):
                    self._refuse(error)
                continue
            if sender_of(command) == name:
                self.echoes += 1
            else:
                out.append(command)
        return out

    def _is_echo(self, message: bytes) -> bool:
        left = self._sent.get(message, 0)
        if left > 1:
            self._sent[message] = left - 1
        elif left:
            del self._sent[message]
        return left > 0

    def _refuse(self, error: RemoteProtocolError) -> None:
        self.bad += 1
        if type(error) not in self._kinds:
            self._kinds.add(type(error))
            self._log.warn("received on the bus: {error}; such messages are ignored", error=error)


def _author(command: Command) -> str | None:
    """The sender of a command that is not about streams, if the line names it."""
    author: str | None = getattr(command, "instance", None)
    return author


def _writer_or_author(command: Command) -> str | None:
    """The writer or sender of a line, if the line names it."""
    writer: str | None = getattr(command, "writer", None)
    return writer or _author(command)

"""Messages of the bus become commands."""

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
    """Reads messages, without what this process said itself.

    A message that nobody can read is counted and left out: whoever said it is
    unknown, and closing our connection would not teach them better. A lost line
    of a stream shows in the next POSITION.

    :param name: of this process, as a writer
    :param follows_itself: rows and positions of its own writer are for it too, as over
        TCP: its handlers want them, and what it acknowledges counts on them
    :param unparsed: offered what is no line, before it counts as bad; takes it or not
    :ivar echoes: how many messages were our own
    :ivar bad: how many were no lines; the first of each kind is logged
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
        self._said: Counter[bytes] = Counter()
        self._said_by = _author if follows_itself else _writer_or_author
        self._log = log
        self._kinds: set[type[RemoteProtocolError]] = set()
        self.echoes = 0
        self.bad = 0

    def note_sent(self, line: bytes) -> None:
        """This line is on its way, and will come back: once, and before the connection is lost.

        By its author alone it would not be known for our own: it names none, or somebody
        for whom we speak. Should another process say the very same line meanwhile, it does
        not matter which of the two is left out.
        """
        self._said[line] += 1

    def forget_sent(self) -> None:
        """The connection is lost, and whatever was on its way."""
        self._said.clear()

    def commands(self, messages: Iterable[bytes]) -> list[Command]:
        """The commands in some messages, in order."""
        out: list[Command] = []
        name, said_by = self.name, self._said_by
        for message in messages:
            try:
                if self._said and self._came_back(message):
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
            if said_by(command) == name:
                self.echoes += 1
            else:
                out.append(command)
        return out

    def _came_back(self, message: bytes) -> bool:
        left = self._said.get(message, 0)
        if left > 1:
            self._said[message] = left - 1
        elif left:
            del self._said[message]
        return left > 0

    def _refuse(self, error: RemoteProtocolError) -> None:
        self.bad += 1
        if type(error) not in self._kinds:
            self._kinds.add(type(error))
            self._log.warn("heard on the bus: {error}; such messages are ignored", error=error)


def _author(command: Command) -> str | None:
    """Who says a command that is not about streams, where the line tells."""
    author: str | None = getattr(command, "instance", None)
    return author


def _writer_or_author(command: Command) -> str | None:
    """Whose line it is, where the line tells."""
    writer: str | None = getattr(command, "writer", None)
    return writer or _author(command)

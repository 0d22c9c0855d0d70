"""Two processes of one name on one bus: each would take the other's lines for its own.

So each process listens on a channel that only processes of its name hear, and says
``HERE <mark>`` there before anything else. Who has the name answers ``TAKEN <mark>``
with the newcomer's mark, which goes away then, and comes back to ask again. The mark is
drawn at each start, so that one's own echo is known. Between processes of synrepl: real
Synapse processes neither hear nor say this.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from synrepl.core.log import Logger

#: How often one's own question has to come back unanswered: whoever has the name hears
#: the first one when it comes back here, and answers within two more. (A later answer is
#: not too late, but by then something was said.) Of two that come at once, all hear
#: whose last question was first.
ASKED = 3

#: Says one line on the channel of the name.
Say = Callable[[bytes], object]


class InstanceNameGuard:
    """Finds out whether this process may have its name on the bus.

    :param name: of this process
    :param mark: tells it from others of its name; drawn by default
    :ivar taken: another process had the name when this was last asked
    """

    def __init__(self, name: str, log: Logger, mark: str | None = None) -> None:
        self._name = name
        self._log = log
        self._mark = (mark or secrets.token_hex(8)).encode()
        self._say: Say | None = None
        self._asked = 0
        self._has_it = False
        self._told = b""
        self.taken = False

    def claim(
        self, say: Say, free: Callable[[], object], give_way: Callable[[str], object]
    ) -> None:
        """The bus can be heard and spoken to: may we have the name?

        :param free: called if so
        :param give_way: called with the reason if not
        """
        self._say, self._free, self._give_way = say, free, give_way
        self._asked = 0
        self._ask()

    def disconnected(self) -> None:
        """Nobody can be asked, nor answered."""
        self._say = None
        self._has_it = False

    def handle(self, message: bytes) -> bool:
        """Deal with a message, if it is about this; False when it is not."""
        verb, _, mark = message.partition(b" ")
        if verb not in (b"HERE", b"TAKEN"):
            return False
        if self._say is not None:
            if mark == self._mark and verb == b"TAKEN":
                self._yield()
            elif mark == self._mark:
                self._came_back()
            elif verb == b"HERE" and self._has_it:
                self._answer(self._say, mark)
        return True

    def _ask(self) -> None:
        assert self._say is not None
        self._asked += 1
        self._say(b"HERE " + self._mark)

    def _came_back(self) -> None:
        if self._asked < ASKED:
            self._ask()
        elif not self._has_it:
            self._has_it, self.taken = True, False
            self._free()

    def _answer(self, say: Say, mark: bytes) -> None:
        say(b"TAKEN " + mark)
        if mark != self._told:  # it asks again and again
            self._told = mark
            self._log.warn(
                "another process has come to the bus as {name!r}, and is sent away", name=self._name
            )

    def _yield(self) -> None:
        self.taken = True
        self._give_way(f"another process is {self._name!r} there")

"""Detects two processes of one name on the bus.

Each of them would mistake the other's lines for its own. So each process subscribes to a channel
for processes of its name, and sends ``HERE <mark>`` there before anything else. The process that
has the name answers ``TAKEN <mark>`` with the newcomer's mark; the newcomer then closes its
connections, and asks again on the next ones. The mark is drawn at each start, so that a process
recognizes its own echo. Only processes of synrepl do this; real Synapse processes neither send
nor receive these messages.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from synrepl.core.log import Logger

#: How many echoes of the question must arrive without an answer before the name is taken. The
#: process that has the name receives the first question no later than its echo arrives here, and
#: its answer arrives before two more echoes do. (A later answer still counts, but lines were sent
#: by then.) If two processes claim the name at once, both see whose last question came first.
QUESTIONS = 3

#: Publishes one line on the channel of the name.
Publish = Callable[[bytes], object]


class InstanceNameGuard:
    """Finds out whether this process may use its name on the bus.

    :param name: the name of this process
    :param mark: identifies it among processes of its name; drawn at random by default
    :ivar taken: whether another process had the name when it was last claimed
    """

    def __init__(self, name: str, log: Logger, mark: str | None = None) -> None:
        self._name = name
        self._log = log
        self._mark = (mark or secrets.token_hex(8)).encode()
        self._publish: Publish | None = None
        self._asked = 0
        self._has_name = False
        self._answered = b""
        self.taken = False

    def claim(
        self, publish: Publish, free: Callable[[], object], on_taken: Callable[[str], object]
    ) -> None:
        """Claim the name; called when the bus is connected.

        :param free: called if the name is free
        :param on_taken: called with the reason if it is taken
        """
        self._publish, self._free, self._on_taken = publish, free, on_taken
        self._asked = 0
        self._ask()

    def disconnected(self) -> None:
        """Stop asking and answering."""
        self._publish = None
        self._has_name = False

    def handle(self, message: bytes) -> bool:
        """Handle a message about names; returns False for any other message."""
        verb, _, mark = message.partition(b" ")
        if verb not in (b"HERE", b"TAKEN"):
            return False
        if self._publish is not None:
            if mark == self._mark and verb == b"TAKEN":
                self._yield()
            elif mark == self._mark:
                self._echoed()
            elif verb == b"HERE" and self._has_name:
                self._answer(self._publish, mark)
        return True

    def _ask(self) -> None:
        assert self._publish is not None
        self._asked += 1
        self._publish(b"HERE " + self._mark)

    def _echoed(self) -> None:
        if self._asked < QUESTIONS:
            self._ask()
        elif not self._has_name:
            self._has_name, self.taken = True, False
            self._free()

    def _answer(self, publish: Publish, mark: bytes) -> None:
        publish(b"TAKEN " + mark)
        if mark != self._answered:  # a newcomer asks repeatedly
            self._answered = mark
            self._log.warn(
                "another process has come to the bus as {name!r}, and is sent away", name=self._name
            )

    def _yield(self) -> None:
        self.taken = True
        self._on_taken(f"another process is {self._name!r} there")

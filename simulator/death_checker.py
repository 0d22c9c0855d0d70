"""Checks that a dead writer does not hold a stream up for long (R8)."""

from __future__ import annotations

from collections.abc import Collection

from simulator.truth import Judge

#: A master that is up and reaches the database polls every second; the rest is its answers' way.
FENCED_WITHIN_S = 5.0

#: A writer of a stream.
Key = tuple[str, str]


class DeathChecker:
    """Measures how long writers have been dead and nobody has fenced them."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._since: dict[Key, float] = {}

    def look(self, now: float, watched: bool, dead: Collection[Key]) -> None:
        """Take in what is to be seen now.

        :param watched: a master is up, and nothing keeps it from the database
        :param dead: the writers that could be fenced: no session, no transaction
        """
        if not watched:
            self._since.clear()
            return
        self._since = {key: self._since.get(key, now) for key in dead}
        for (stream, writer), since in self._since.items():
            if now - since > FENCED_WITHIN_S:
                self._judge.broken(
                    "R8", "{writer} of {stream} has been dead for {seconds:.1f} s and is not fenced",
                    writer=writer, stream=stream, seconds=now - since,
                )  # fmt: skip

"""Checks that a dead writer does not block a stream for long (R8)."""

from __future__ import annotations

from collections.abc import Collection

from simulator.truth import Violations

#: A master with access to the database polls every second; the rest is time for its queries.
FENCED_WITHIN_S = 5.0

#: A writer of a stream.
Key = tuple[str, str]


class DeathChecker:
    """Measures how long dead writers stay unfenced."""

    def __init__(self, violations: Violations) -> None:
        self._violations = violations
        self._since: dict[Key, float] = {}

    def check(self, now: float, supervised: bool, dead: Collection[Key]) -> None:
        """Check the current state.

        :param supervised: whether a master is up and can reach the database
        :param dead: the writers that could be fenced: without session and transaction
        """
        if not supervised:
            self._since.clear()
            return
        self._since = {key: self._since.get(key, now) for key in dead}
        for (stream, writer), since in self._since.items():
            if now - since > FENCED_WITHIN_S:
                self._violations.add(
                    "R8", "{writer} of {stream} has been dead for {seconds:.1f} s and is not fenced",
                    writer=writer, stream=stream, seconds=now - since,
                )  # fmt: skip

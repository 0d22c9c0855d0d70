"""Steps of a scenario, each a line of the report."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from interop import polling
from interop.report import Section
from synrepl.core.errors import SynreplError

T = TypeVar("T")

#: Longer than a transaction of other servers takes on a machine that is busy.
_WAIT_S = 30.0


class Steps:
    """Adds steps to a section, and says so; one that fails is a line, and the next ones go on."""

    def __init__(self, section: Section) -> None:
        self._section = section
        print(f"interop.federation: {section.title}", file=sys.stderr, flush=True)

    def _check(self, claim: str, holds: bool, detail: str = "") -> None:
        self._section.check(claim, holds, detail)
        said = "" if holds else "NOT "
        print(f"interop.federation: {said}{claim}: {detail}", file=sys.stderr, flush=True)

    def does(self, claim: str, action: Callable[[], T]) -> T | None:
        """Something that must not fail; its result, or None if it did.

        The seconds that it took are in the report.
        """
        begun = time.monotonic()
        try:
            found = action()
        except (SynreplError, OSError) as error:
            self._check(claim, False, str(error))
            return None
        self._check(claim, True, f"{time.monotonic() - begun:.1f} s")
        return found

    def holds(self, claim: str, condition: Callable[[], object], seconds: float = _WAIT_S) -> None:
        """Something that must be true in the end."""
        self.does(claim, lambda: polling.wait_until(claim, condition, seconds))

    def refused(self, claim: str, status: int, answered: int) -> None:
        """A request that must be refused with a status."""
        self._check(claim, answered == status, f"status {answered}")

    def equal(self, claim: str, ours: Callable[[], T], theirs: Callable[[], T]) -> None:
        """Something that both sides must have the same."""
        try:
            mine, other = ours(), theirs()
        except (SynreplError, OSError) as error:
            self._check(claim, False, str(error))
            return
        self._check(claim, mine == other, _difference(mine, other))

    def settles(self, claim: str, ours: Callable[[], T], theirs: Callable[[], T]) -> None:
        """Something that both sides must have the same once all has arrived."""
        with suppress(SynreplError, OSError):
            polling.wait_until(claim, lambda: ours() == theirs(), _WAIT_S)
        self.equal(claim, ours, theirs)


def _difference(ours: object, theirs: object) -> str:
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return "" if ours == theirs else f"{ours} here, {theirs} there"
    keys = [key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)]
    if not keys:
        return f"{len(ours)} entries"
    some = "; ".join(f"{key}: {ours.get(key)} here, {theirs.get(key)} there" for key in keys[:3])
    return f"{len(keys)} of {len(ours)} and {len(theirs)} differ: {some}"

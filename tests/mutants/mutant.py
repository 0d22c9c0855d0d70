"""One defect: a change of source text."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]

#: What mutants change.
ROOMS = Path("synrepl") / "rooms"

#: What mutants of the store change.
PACKAGE = Path("synrepl")


class DoesNotApply(Exception):
    """The text that a mutant replaces is not there exactly once."""


class Mutant(NamedTuple):
    """A defect made on purpose.

    :ivar name: what the command line calls it
    :ivar path: the file, below ``folder``
    :ivar old: text that is in it exactly once
    :ivar new: what stands there instead
    :ivar drops: which rule is gone, or turned
    :ivar tests: modules, classes or methods of tests, those that notice it soonest first
    :ivar folder: that has the file
    """

    name: str
    path: str
    old: str
    new: str
    drops: str
    tests: tuple[str, ...]
    folder: Path = ROOMS

    @property
    def is_of_store(self) -> bool:
        """Whether it is in the room store, not in the rules."""
        return self.folder == PACKAGE

    def source(self, root: Path) -> Path:
        """The file.

        :param root: the folder that has ``synrepl``
        """
        return root / self.folder / self.path

    def apply(self, root: Path) -> str:
        """The whole text of the file with the defect.

        :param root: the folder that has ``synrepl``
        :raises DoesNotApply: ``old`` is not in it exactly once
        """
        path = self.source(root)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        times = text.count(self.old)
        if times != 1:
            raise DoesNotApply(f"{self.name}: {self.old!r} is {times} times in {self.path}")
        return text.replace(self.old, self.new)

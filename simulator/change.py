"""What the application does to its data, and what it says about that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from simulator.application import MOVED
from simulator.application_data import ITEMS, LABELS, DataKey


@dataclass(frozen=True, slots=True)
class Change:
    """Something that the application does to its data.

    :ivar keys: what it changes
    :ivar stale: what it says about that: names of caches or expansions, with a key
        each, or None for all of it
    """

    keys: Sequence[DataKey]
    stale: Sequence[tuple[str, tuple[str | int, ...] | None]]

    @classmethod
    def draw(cls, random: Random) -> Change:
        """One of its kinds."""
        return random.choice((_one, _one, _several, _shelf, _all_labels, _moved))(random)


def _one(random: Random) -> Change:
    key = random.choice((*ITEMS, *LABELS))
    return _each([key])


def _several(random: Random) -> Change:
    return _each(random.sample((*ITEMS, *LABELS), random.randint(2, 4)))


def _each(keys: Sequence[DataKey]) -> Change:
    return Change(keys, [(str(name), tuple(arguments)) for name, *arguments in keys])


def _shelf(random: Random) -> Change:
    shelf = random.choice(ITEMS)[1]
    return Change([key for key in ITEMS if key[1] == shelf], [("item", (shelf,))])


def _all_labels(random: Random) -> Change:
    return Change(LABELS, [("label", None)])


def _moved(random: Random) -> Change:
    shelf = random.choice(ITEMS)[1]
    labels = random.sample(LABELS, random.randint(0, 2))
    items = [key for key in ITEMS if key[1] == shelf]
    return Change([*items, *labels], [(MOVED.name, (shelf, *(key[1] for key in labels)))])

"""Two accounts of the same facts, compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from synrepl.core.tokens import Token
from synrepl.daemon.demo.tally import Entry

#: Runs of faulty facts that are told apart; the others are only counted.
MAX_RUNS = 100


class Fault(StrEnum):
    """What can be wrong with a fact."""

    MISSING = "missing"
    UNEXPECTED = "not expected"
    DOUBLED = "there more than once"
    DIFFERENT = "there with other rows"


class Difference(NamedTuple):
    """A run of facts, one after the other in the accounts, of which the same is wrong.

    :ivar first: the token of the first, ``last`` of the last
    :ivar facts: how many
    """

    fault: Fault
    first: Token
    last: Token
    facts: int

    def __str__(self) -> str:
        if self.facts == 1:
            return f"the fact at token {self.first} is {self.fault}"
        return f"{self.facts} facts at tokens {self.first} to {self.last} are {self.fault}"


class Compared(NamedTuple):
    """What came out.

    :ivar facts: in the account that was found, each counted once; ``rows`` likewise
    :ivar wrong: facts with which something is wrong
    :ivar differences: the first :data:`MAX_RUNS` runs of those
    """

    facts: int
    rows: int
    wrong: int
    differences: list[Difference]


class Comparison:
    """Holds what was found against what is expected. Neither has to fit into memory.

    :param found: ascends by token
    """

    def __init__(self, found: Iterable[Entry]) -> None:
        self._found = _by_token(found)
        self._next = next(self._found, None)
        self._facts = self._rows = self._wrong = 0
        self._differences: list[Difference] = []
        self._before: Fault | None = None

    def expect(self, entry: Entry, *others: Entry) -> None:
        """Say what comes next; tokens ascend.

        :param others: forms of the same fact that are as good
        """
        while self._next is not None and self._next[0] < entry.token:
            self._take(*self._next, Fault.UNEXPECTED)
        if self._next is None or self._next[0] > entry.token:
            self._note(entry.token, Fault.MISSING)
        elif len(self._next[1]) > 1:
            self._take(*self._next, Fault.DOUBLED)
        else:
            same = self._next[1][0] in (entry, *others)
            self._take(*self._next, None if same else Fault.DIFFERENT)

    def finish(self) -> Compared:
        """Nothing more is expected: the result."""
        while self._next is not None:
            self._take(*self._next, Fault.UNEXPECTED)
        return Compared(self._facts, self._rows, self._wrong, self._differences)

    def _take(self, token: Token, entries: list[Entry], fault: Fault | None) -> None:
        self._facts += 1
        self._rows += entries[0].rows
        self._note(token, fault)
        self._next = next(self._found, None)

    def _note(self, token: Token, fault: Fault | None) -> None:
        runs = self._differences
        if fault is not None:
            self._wrong += 1
            if fault is self._before:
                runs[-1] = runs[-1]._replace(last=token, facts=runs[-1].facts + 1)
            elif len(runs) < MAX_RUNS:
                runs.append(Difference(fault, token, token, 1))
            else:
                fault = None
        self._before = fault


def _by_token(entries: Iterable[Entry]) -> Iterator[tuple[Token, list[Entry]]]:
    for token, group in groupby(entries, key=attrgetter("token")):
        yield token, list(group)

"""What interrupts transactions: statements that fail, lost connections, lost answers, killed processes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Protocol

from synrepl.storage.database import CommitUnknown
from synrepl.storage.store import DatabaseAway

#: Statements of the longest transactions, about. An interruption that is to come later comes at COMMIT.
LAST_STATEMENT = 30


class Fault(StrEnum):
    """What happens to a transaction."""

    LOST = "loses its connection"  #: and runs the work again
    AWAY = "cannot reach the database"
    UNKNOWN = "does not hear of its COMMIT"
    KILLED = "is killed"


class ProcessKilled(BaseException):
    """Ends a transaction of a process that is killed. No code of the process may catch it."""


@dataclass(slots=True)
class Interruption:
    """A fault of one transaction.

    :ivar statement: before which of its statements; one that it does not have stands for COMMIT
    :ivar is_committed: whether it comes after COMMIT instead
    """

    fault: Fault
    statement: int
    is_committed: bool

    def error(self, name: str) -> BaseException:
        """The error that the work function gets."""
        if self.fault is Fault.KILLED:
            return ProcessKilled()
        if self.fault is Fault.UNKNOWN:
            return CommitUnknown(where="there", name=name, xid="?", reason="simulated")
        return DatabaseAway(where="there", reason="simulated")

    def __str__(self) -> str:
        place = "after COMMIT" if self.is_committed else f"at statement {self.statement}"
        return f"{self.fault} {place}"


class InterruptsTransactions(Protocol):
    """Decides which transactions are interrupted, and where."""

    def draw(self, read_only: bool) -> Interruption | None:
        """The interruption of the next transaction; None for most."""

    def reached(self, name: str, sql: str) -> None:
        """A transaction is about to run a statement, or to commit, or has committed; may raise what interrupts it."""


class KillsEverywhere:
    """Kills a process once at each statement of each kind of transaction, and before and after its COMMIT.

    :ivar places: where it was killed
    :ivar is_on: whether it is killed at all
    """

    def __init__(self) -> None:
        self.places: set[tuple[str, str]] = set()
        self.is_on = False

    def draw(self, read_only: bool) -> None:
        """There is no other interruption."""

    def reached(self, name: str, sql: str) -> None:
        """A transaction is about to run a statement, or to commit, or has committed.

        :raises ProcessKilled: it was never killed there before
        """
        if self.is_on and (name, sql) not in self.places:
            self.places.add((name, sql))
            raise ProcessKilled


class RandomInterruptions:
    """Draws the interruptions of transactions.

    :param share: of the transactions, how many are interrupted
    :ivar share: as given; 0 while nothing is to be interrupted
    """

    def __init__(self, random: Random, share: float) -> None:
        self._random = random
        self.share = share

    def reached(self, name: str, sql: str) -> None:
        """What is interrupted was drawn before."""

    def draw(self, read_only: bool) -> Interruption | None:
        """The interruption of the next transaction; None for most."""
        random = self._random
        if random.random() >= self.share:
            return None
        fault = random.choice(
            [each for each in Fault if not read_only or each is not Fault.UNKNOWN]
        )
        statement = random.randint(1, random.choice([4, 12, LAST_STATEMENT]))
        if fault is Fault.UNKNOWN:
            statement = LAST_STATEMENT + 1
        is_committed = fault in (Fault.UNKNOWN, Fault.KILLED) and random.random() < 0.4
        return Interruption(fault, statement, is_committed)

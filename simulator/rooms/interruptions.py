"""What interrupts transactions: statements that fail, lost connections, lost answers, killed processes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random

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


class RandomInterruptions:
    """Draws the interruptions of transactions.

    :param share: of the transactions, how many are interrupted
    :ivar share: as given; 0 while nothing is to be interrupted
    """

    def __init__(self, random: Random, share: float) -> None:
        self._random = random
        self.share = share

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

"""What the checks of stored rooms find, as data."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class RoomProblem(StrEnum):
    """What is wrong."""

    MISSING_JSON = "missing JSON"
    CORRUPT_EVENT = "corrupt event"  #: bytes that do not fit their checksum or their ID
    WRONG_CONTENT = "wrong content"  #: content that does not fit its hash, and was not erased
    WRONG_COLUMN = "wrong column"  #: a column that is not what the event's JSON says
    WRONG_EDGE = "wrong edge"  #: prev events or auth events that are not what the event's JSON says
    DANGLING = "reference to nothing"
    GROUP_WITHOUT_ROW = "state group without row"
    CROSS_ROOM = "cross-room state group"
    CORRUPT_GROUP = "corrupt state group"  #: entries that do not fit its digest
    WRONG_LINE = "line that differs"  #: from the groups that it is derived from
    WRONG_CURRENT_STATE = "wrong current state"
    WRONG_HEADS = "wrong heads"
    MANY_EXTREMITIES = "many extremities"
    WRONG_PARTIAL = "wrong partial state"  #: rows about partial state that contradict one another
    STANDS_STILL = "partial room stands still"


class RoomFinding(NamedTuple):
    """A finding.

    :ivar subject: an event, a state group, a line, a state key
    :ivar detail: what was expected and what is there
    """

    problem: RoomProblem
    room_id: str
    subject: str
    detail: str

    def to_json(self) -> dict[str, str]:
        """``{"problem", "room_id", "subject", "detail"}``."""
        return {
            "problem": self.problem.value,
            "room_id": self.room_id,
            "subject": self.subject,
            "detail": self.detail,
        }


class CheckedPage(NamedTuple):
    """A page of checks.

    :ivar checked: how many rows were looked at
    :ivar next_page: where to go on; None at the end
    """

    findings: Sequence[RoomFinding]
    checked: int
    next_page: tuple[bool, int] | None

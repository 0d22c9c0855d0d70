"""Finds the outliers and state keys of a room that nothing needs, page by page, without the room's lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance import unneeded
from synrepl.storage.rooms.maintenance.unneeded import ReferencesPage
from synrepl.storage.rooms.tables.numbers import RoomRow

T = TypeVar("T")

#: Outliers that are looked at together: their numbers are in memory.
MAX_OUTLIERS = 200_000

#: Below any stream ID.
_FIRST_STREAM_ID = -(1 << 62)

#: Above any event number.
_ABOVE_EVENTS = 1 << 62


class RunsWork(Protocol):
    """Runs work in a transaction of its own."""

    async def __call__(self, name: str, work: Callable[[Transaction], T]) -> T:
        """Run it."""
        ...


class UnneededOutliers(NamedTuple):
    """Outliers that nothing needs.

    :ivar waiting_no: the last waiting event that was looked at
    :ivar next_below: the event number below which there may be more; None at the end
    """

    numbers: Set[int]
    waiting_no: int
    next_below: int | None


class UnneededSearch:
    """Searches one room.

    :param run: runs each page in a transaction of its own
    """

    def __init__(self, run: RunsWork, room: RoomRow) -> None:
        self._run = run
        self._room = room

    async def outliers(self, below: int | None = None) -> UnneededOutliers:
        """The outliers that nothing needs, among the next :data:`MAX_OUTLIERS` of them.

        :param below: event number of the last one that was looked at
        """
        room_no = self._room.room_no
        numbers = await self._run(
            "find outliers",
            partial(
                unneeded.outliers_below,
                room_no=room_no,
                below=_ABOVE_EVENTS if below is None else below,
                limit=MAX_OUTLIERS,
            ),
        )
        next_below = numbers[-1] if len(numbers) == MAX_OUTLIERS else None
        found = set(numbers)
        waiting_no = 0
        if found:
            waiting_no = await self._mark(found, is_all=below is None and next_below is None)
        return UnneededOutliers(frozenset(found), waiting_no, next_below)

    async def _mark(self, found: set[int], *, is_all: bool) -> int:
        """Take away from ``found`` what is needed.

        :param is_all: whether these are all outliers of the room; what others cite is needed
        """
        candidates = frozenset(found)
        room_no = self._room.room_no
        waiting_no, is_last = 0, False
        while not is_last:
            page = await self._run(
                "find what waiting events cite",
                partial(unneeded.cited_by_waiting, room=self._room, after=waiting_no),
            )
            found -= page.numbers
            waiting_no, is_last = page.last_no, page.is_last
        after: int | None = 0
        while after is not None and found:
            in_page = await self._run(
                "find events of states", partial(unneeded.in_groups, room_no=room_no, after=after)
            )
            found -= in_page.events
            after = in_page.next_page
        pages: list[tuple[Callable[..., ReferencesPage], int]] = [
            (partial(unneeded.in_current_state, room_no=room_no), -1),
            (partial(unneeded.cited_by_events, room_no=room_no), _FIRST_STREAM_ID),
        ]
        if not is_all:
            but = min(candidates), max(candidates)
            pages.append((partial(unneeded.cited_by_outliers, room_no=room_no, but=but), 0))
        for read, first in pages:
            found -= await self._referred_to(read, first)
        ahead = list(candidates - found)
        while ahead and found:
            part, ahead = ahead[-unneeded.PAGE_ROWS :], ahead[: -unneeded.PAGE_ROWS]
            cited = await self._run(
                "find what outliers cite", partial(unneeded.cited_by, numbers=part)
            )
            ahead += found & cited
            found -= cited
        return waiting_no

    async def _referred_to(self, read: Callable[..., ReferencesPage], first: int) -> set[int]:
        numbers: set[int] = set()
        after: int | None = first
        while after is not None:
            page = await self._run("find references", partial(read, after=after))
            numbers |= page.numbers
            after = page.next_page
        return numbers

    async def keys(self) -> Sequence[int]:
        """The slots that no event, group or line has."""
        room_no = self._room.room_no
        found = await self._referred_to(partial(unneeded.keys_without_events, room_no=room_no), -1)
        after: int | None = 0
        while after is not None and found:
            page = await self._run(
                "find slots of states", partial(unneeded.in_groups, room_no=room_no, after=after)
            )
            found -= page.slots
            after = page.next_page
        if found:
            found -= await self._referred_to(
                partial(unneeded.slots_beside_lines, room_no=room_no), 0
            )
        ahead = sorted(found)
        for at in range(0, len(ahead), unneeded.PAGE_ROWS):
            part = ahead[at : at + unneeded.PAGE_ROWS]
            found -= await self._run(
                "find slots of lines",
                partial(unneeded.slots_on_lines, room_no=room_no, slots=part),
            )
        return sorted(found)

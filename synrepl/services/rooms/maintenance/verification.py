"""Verification of stored rooms, page by page."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeVar

from synrepl.core.errors import SynreplError
from synrepl.services.rooms.maintenance.room_job import MaintenanceProgress, ProgressListener
from synrepl.storage.database import Database, Isolation, Transaction
from synrepl.storage.rooms.maintenance.findings import CheckedPage, RoomFinding, RoomProblem
from synrepl.storage.rooms.maintenance.verify_ends import (
    MAX_LISTED,
    verify_current_state,
    verify_heads,
    verify_references,
)
from synrepl.storage.rooms.maintenance.verify_events import FIRST_EVENTS, verify_events
from synrepl.storage.rooms.maintenance.verify_groups import FIRST_GROUPS, GroupVerifier
from synrepl.storage.rooms.maintenance.verify_lines import (
    LineVerifier,
    lines_to_verify,
    places_without_line,
)
from synrepl.storage.rooms.tables.heads import read_heads
from synrepl.storage.rooms.tables.numbers import RoomRow, require_room

T = TypeVar("T")

#: Rows that are checked in one transaction.
PAGE_EVENTS = 500
PAGE_GROUPS = 1_000


class RoomVerification:
    """Checks everything that is stored of rooms, and changes nothing.

    Others go on meanwhile: each page is a snapshot, and what one page compares belongs to one moment.

    Signatures are not checked, which takes the keys of their servers, nor are events judged again, nor is looked at
    who may see them, or at events that wait.

    :ivar checked: numbers of events, state groups, and groups on lines that were looked at so far
    """

    def __init__(self, database: Database, progress: ProgressListener | None = None) -> None:
        self._database = database
        self.checked: Counter[str] = Counter()
        self._progress = progress

    async def room_ids(self) -> list[str]:
        """All rooms."""

        def read(txn: Transaction) -> list[str]:
            txn.execute(
                "SELECT room_id FROM synrepl._rooms"
                " WHERE room_id NOT LIKE 'forgotten %' ORDER BY room_no"
            )
            return [str(room_id) for (room_id,) in txn.fetchall()]

        return await self._read("list rooms", read)

    async def findings(self, room_id: str) -> AsyncIterator[RoomFinding]:
        """What is wrong with a room; nothing, if all is well.

        Every event is hashed and its ID computed again, the digest of every state group is computed from its
        entries, lines are compared with groups, the current state with the resolution of the forward
        extremities, and counts with tables.

        :raises UnknownRoom: it is not here
        """
        room = await self._read("find a room", lambda txn: require_room(txn, room_id))
        heads = await self._read("read heads", partial(read_heads, room_no=room.room_no))
        events = None if heads is None else heads.events + heads.outliers
        async for each in self._pages(
            room,
            "events",
            partial(verify_events, room=room, limit=PAGE_EVENTS),
            FIRST_EVENTS,
            events,
        ):
            yield each
        groups = GroupVerifier(room)
        async for each in self._pages(
            room, "state groups", partial(groups.page, limit=PAGE_GROUPS), FIRST_GROUPS, None
        ):
            yield each
        for line in await self._read("find lines", partial(lines_to_verify, room=room)):
            follower = LineVerifier(room, line)
            async for each in self._pages(
                room,
                f"line {line.line_no}",
                partial(follower.page, limit=PAGE_GROUPS),
                FIRST_GROUPS,
                None,
            ):
                yield each
        checks: list[tuple[str, Callable[[Transaction], list[RoomFinding]]]] = [
            ("places", partial(places_without_line, room=room, limit=MAX_LISTED)),
            ("references", lambda txn: list(verify_references(txn, room))),
            ("heads", lambda txn: list(verify_heads(txn, room))),
            ("current state", lambda txn: list(verify_current_state(txn, room))),
        ]
        for phase, check in checks:
            for each in await self._checked(room, phase, check):
                yield each

    async def _checked(
        self, room: RoomRow, phase: str, check: Callable[[Transaction], list[RoomFinding]]
    ) -> list[RoomFinding]:
        try:
            found = await self._read(f"verify {phase}", check)
        except SynreplError as error:
            if phase != "current state":
                raise
            found = [
                RoomFinding(
                    RoomProblem.WRONG_CURRENT_STATE, room.room_id, "current state", str(error)
                )
            ]
        self._tell(room, phase, 1, 1)
        return found

    async def _pages(
        self,
        room: RoomRow,
        phase: str,
        check: Callable[..., CheckedPage],
        first: tuple[bool, int],
        total: int | None,
    ) -> AsyncIterator[RoomFinding]:
        after: tuple[bool, int] | None = first
        done = 0
        while after is not None:
            page: CheckedPage = await self._read(f"verify {phase}", partial(check, after=after))
            for each in page.findings:
                yield each
            done += page.checked
            self.checked["groups on lines" if phase.startswith("line ") else phase] += page.checked
            self._tell(room, phase, done, total)
            after = page.next_page

    def _tell(self, room: RoomRow, phase: str, done: int, total: int | None) -> None:
        if self._progress is not None:
            self._progress(MaintenanceProgress(room.room_id, phase, done, total))

    async def _read(self, name: str, work: Callable[[Transaction], T]) -> T:
        return await self._database.run(
            name, work, read_only=True, isolation=Isolation.REPEATABLE_READ
        )

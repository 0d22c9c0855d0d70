"""What tests of clients in random rooms share: how far processes are, and what users may see."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from synrepl.positions.vector import PositionVector
from synrepl.rooms import Sight, Viewer
from synrepl.storage.database import Transaction
from tests.storage.rooms.store_case import StoreCase
from tests.storage.rooms.test_visibility import expected_verdict
from tests.storage.rooms.written_rooms import WrittenEvent


class RandomRoomsCase(StoreCase):
    """Random rooms, which two processes persist while clients ask.

    :ivar last: the position of each of them in the last vector; each random run begins anew
    """

    last: dict[str, int]

    async def vector(self, rng: Random, *, everything: bool = False) -> PositionVector:
        """How far a process has come: it may be behind one writer, but never behind an earlier vector."""
        newest = "SELECT max(stream_id) FROM synrepl.events"
        highest = int(await self.read(lambda txn: txn.execute(newest).fetchone()[0]))
        last = self.last
        if everything or rng.random() < 0.5:
            last.update(dict.fromkeys(last, highest))
            return PositionVector(linear=highest)
        ahead = rng.choice(list(last))
        behind = next(each for each in last if each != ahead)
        last[ahead] = highest
        return PositionVector({ahead: highest}, last[behind])

    async def membership(self, room_id: str, user: str) -> str:
        """The current membership of a user."""

        def work(txn: Transaction) -> str:
            found = txn.execute(
                "SELECT m.membership FROM synrepl._memberships m JOIN synrepl._rooms USING (room_no)"
                " WHERE room_id = %s AND m.user_id = %s",
                (room_id, user),
            ).fetchone_or_none()
            return "leave" if found is None else str(found[0])

        return await self.read(work)


def visible_events(stored: Any, user: str) -> dict[str, WrittenEvent]:
    """The events that the pure rules show to a user, by ID.

    :param stored: by :func:`.as_stored`
    """
    found: dict[str, WrittenEvent] = {}
    for kept in stored.events:
        verdict = expected_verdict(kept, Viewer(user), ())
        if verdict is not None and verdict[0].sight is not Sight.HIDDEN:
            assert kept.ordering is not None
            found[kept.event.event_id] = kept
    return found


def live_events(events: Mapping[str, WrittenEvent]) -> set[str]:
    """Those that did not come as history."""
    return {each for each, kept in events.items() if kept.ordering and kept.ordering.stream > 0}

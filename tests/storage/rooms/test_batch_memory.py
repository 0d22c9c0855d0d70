"""What is left in memory of a batch that was persisted: nothing that waits for the garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from synrepl.rooms import Event
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.persisting.batch import RoomBatch
from synrepl.storage.rooms.persisting.persist_run import PersistRun
from synrepl.storage.rooms.states.group_writer import GroupWriter
from tests.rooms.small_rooms import SmallRoom
from tests.storage.rooms.store_case import StoreCase


class BatchesInMemory(StoreCase):
    """Daemons collect garbage rarely, so batches in reference cycles would add up."""

    timeout = 60

    async def test_nothing_of_a_batch_is_in_a_cycle(self) -> None:
        small = SmallRoom("10")
        branches = [small.topic(small.rules), small.topic(small.rules)]
        batches: list[list[Event]] = [
            [*small.base, small.carol],
            branches,
            [small.message(*branches)],
        ]
        for batch in batches:
            gc.collect()
            others = parts_of_batches()  # of other tests in this process
            gc.disable()
            try:
                await self.one.persist(small.create.room_id, small.version, batch)
                # The thread of the batch may still be about to forget it.
                await self.until(lambda others=others: not parts_of_batches(others))  # type: ignore[misc]
            finally:
                gc.enable()


def parts_of_batches(others: Sequence[object] = ()) -> list[object]:
    """The objects of batches that are in memory.

    :param others: those that do not count
    """
    known = set(map(id, others))
    kinds = PersistRun, Outbox, RoomBatch, GroupWriter
    return [each for each in gc.get_objects() if isinstance(each, kinds) and id(each) not in known]

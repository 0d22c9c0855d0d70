"""Redactions that a purge keeps without their states, and that come back."""

from __future__ import annotations

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint
from synrepl.storage.rooms.tables.events import events_by_id
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent
from tests.rooms.small_rooms import SmallRoom
from tests.storage.rooms.kept_rooms import MaintainedCase


class ReturningRedactions(MaintainedCase):
    """A redaction that is here for its target."""

    async def test_a_redaction_that_was_kept_for_its_target_comes_back_with_its_state(self) -> None:
        room = SmallRoom("10")
        message = room.message(room.carol)
        cites = (room.create, room.alice)
        redaction = room.event(
            "m.room.redaction", {}, [room.carol], cites, redacts=message.event_id
        )
        last = room.message(message, redaction)
        before = [*room.base, room.carol]
        room_id = room.create.room_id
        # The redaction waits for its target, which so has the later stream ID.
        await self.one.persist(room_id, room.version, [*before, redaction, message, last])
        stored = await self.read(lambda txn: events_by_id(txn, [message.event_id]))
        row = stored[message.event_id]
        self.assertIsNotNone(row.redacted_by)
        point = PurgePoint.of_stream(row.stream_id or 0)
        await self.maintenance.purge(room_id, point, index_check=False)
        come_back = IncomingEvent(redaction, state_before=room.state(*before))
        done = await self.one.persist(room_id, room.version, [come_back])
        self.assertEqual(done.events[0].outcome, EventOutcome.ACCEPTED)
        self.assertEqual(await self.redactions_stored(), [(redaction.event_id, True)])

    async def redactions_stored(self) -> list[tuple[str, bool]]:
        """Redactions, and whether each applies to an event that is here."""

        def work(txn: Transaction) -> list[tuple[str, bool]]:
            txn.execute(
                "SELECT e.event_id, r.applied FROM synrepl._redactions r"
                " JOIN synrepl._room_events e ON e.event_no = r.redaction_no"
            )
            return [(event_id, applied) for event_id, applied in txn.fetchall()]

        return await self.read(work)

"""The progress of a resync is data: it can be stored after any step, and another process goes on with it."""

from __future__ import annotations

from unittest import TestCase

import msgspec

from synrepl.rooms.partial import PartialRoom, ResyncProgress
from synrepl.rooms.snapshot import RoomSnapshot, load_room, snapshot_of
from tests.rooms.dags import state_of
from tests.rooms.test_partial import Story, word
from tests.rooms.vector_files import files

#: After so many events a process ends.
STEPS = 7


def restart(story: Story) -> None:
    """Go on in another process, with nothing but bytes."""
    room = msgspec.msgpack.encode(snapshot_of(story.room))
    progress = msgspec.json.encode(story.partial.progress)
    story.room = load_room(msgspec.msgpack.decode(room, type=RoomSnapshot))
    loaded = msgspec.json.decode(progress, type=ResyncProgress)
    story.partial = PartialRoom(story.room, loaded, story.data["joining_server"])


class ResyncProgressAcrossRestarts(TestCase):
    """Processes that end now and then."""

    def test_a_resync_continues_where_it_was(self) -> None:
        for name in files("faster_joins/*"):
            with self.subTest(name):
                self.resync(Story(name))

    def resync(self, story: Story) -> None:
        story.push_all()
        restart(story)
        join_id = story.data["join_event_id"]
        judged: list[str] = []
        while story.partial.is_partial:
            for pending in story.partial.pending():
                state = story.state_at(join_id) if pending.state_needed else None
                story.partial.resync(pending.event_id, state)
                judged.append(pending.event_id)
                if len(judged) % STEPS == 0:
                    break
            restart(story)
        self.assertEqual(len(judged), len(set(judged)))
        expected = story.data["expected"]
        self.assertEqual(
            story.room.current_state(), state_of(expected["current_state_after_resync"])
        )
        verdicts = {each: word(story.room[each]) for each in expected["verdicts_after_resync"]}
        self.assertEqual(verdicts, expected["verdicts_after_resync"])

    def test_a_completed_resync_keeps_nothing(self) -> None:
        story = Story(files("faster_joins/*")[0])
        join_id = story.data["join_event_id"]
        for pending in story.partial.pending():
            story.partial.resync(pending.event_id, story.state_at(join_id))
        self.assertEqual(
            story.partial.progress, ResyncProgress(story.join.servers, is_partial=False)
        )
        restart(story)
        self.assertFalse(story.partial.is_partial)
        self.assertEqual(list(story.partial.pending()), [])

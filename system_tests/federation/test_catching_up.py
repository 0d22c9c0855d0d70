"""Destinations that were away get what they must have when they are back, and cost nothing before."""

from __future__ import annotations

from simulator.federation.receiving_server import Reception
from simulator.federation.sending_processes import HOME
from simulator.federation.sending_world import SendingWorld
from synrepl.federation.partitions import partition_of
from synrepl.services.federation.sending import transactions
from synrepl.services.federation.sending.destination_queue import MAX_PENDING
from synrepl.services.federation.sending.dispatcher import SendingLimits
from synrepl.services.federation.sending.transactions import MAX_MISSED
from tests.services.federation.sending.sending_case import SendingCase

ALICE = f"@alice:{HOME}"


class AbsenceTest(SendingCase):
    def test_sends_everything_if_little_was_missed(self) -> None:
        world = self.world()
        room = world.room("room", ["one"])
        self.settle(world)
        world.federation.stop("one")
        for _ in range(MAX_MISSED):
            world.say(room)
        world.federation.start("one")
        self.settle(world)

    def test_sends_the_newest_event_of_each_room_if_much_was_missed(self) -> None:
        world = self.world()
        rooms = [world.room(f"room{number}", ["one"]) for number in range(3)]
        self.settle(world)
        one, before = world.receivers["one"], len(world.receivers["one"].event_ids)
        world.federation.stop("one")
        first = world.say(rooms[0])
        world.run(40.0)  # it is in flight, and has failed
        for _ in range(MAX_MISSED):
            world.say(rooms[0])
        newest = [world.say(room) for room in rooms]
        world.run(3.0)
        world.federation.start("one")
        world.until(lambda: newest[-1].event_id in one.event_ids)
        world.check()
        wanted = [first.event_id, *(each.event_id for each in newest)]
        self.assertEqual(one.event_ids[before:], wanted)
        live = world.say(rooms[1])
        world.until(lambda: live.event_id in one.event_ids)
        world.check()

    def test_sends_the_event_by_which_the_server_left_a_room(self) -> None:
        world = self.world()
        room = world.room("room", ["one"])
        self.settle(world)
        world.federation.stop("one")
        for _ in range(MAX_MISSED):
            world.say(room)
        kick = world.send(room, "m.room.member", ALICE, {"membership": "leave"}, "@bob:one")
        for _ in range(MAX_MISSED + 5):
            world.say(room)
        world.federation.start("one")
        world.until(lambda: kick.event_id in world.receivers["one"].event_ids)
        world.check()

    def test_a_destination_that_is_slower_than_the_room_gets_the_newest_events(self) -> None:
        world = self.world()
        room = world.room("room", ["one"])
        self.settle(world)
        one = world.receivers["one"]
        one.answer_s = 55.0
        world.say(room)
        world.run(1.0)
        events = [
            world.home.send(room.room_id, "m.room.message", ALICE, {"n": number})
            for number in range(MAX_PENDING + 20)
        ]
        for start in range(0, len(events), 200):
            world.persist(room, events[start : start + 200])
        one.answer_s = 0.0
        world.until(lambda: events[-1].event_id in one.event_ids)
        world.check()
        self.assertLess(len(one.event_ids), len(events))

    def test_many_rooms_are_read_page_by_page(self) -> None:
        self.patch(transactions, "MAX_MISSED_ROOMS", 3)
        self.patch(transactions, "MAX_MISSED", 2)
        world = self.world()
        rooms = [world.room(f"room{number}", ["one"]) for number in range(8)]
        self.settle(world)
        world.federation.stop("one")
        newest = [world.say(room) for room in (*rooms, *rooms)][-8:]
        world.run(5.0)
        world.federation.start("one")
        world.until(
            lambda: {each.event_id for each in newest} <= set(world.receivers["one"].event_ids)
        )
        world.check()


class BackOffTest(SendingCase):
    def test_a_server_that_is_up_again_is_sent_to_at_once(self) -> None:
        world = self.world()
        room = world.room("room", ["one"])
        self.settle(world)
        world.federation.stop("one")
        said = world.say(room)
        world.run(2_000.0)
        world.federation.start("one")
        sender = world.senders["sender1"]
        sender.process.spawn("up", sender.is_up("one"))
        began = world.clock.seconds()
        world.until(lambda: said.event_id in world.receivers["one"].event_ids)
        self.assertLess(world.clock.seconds() - began, 5.0)
        world.check()

    def test_destinations_that_are_away_are_not_asked(self) -> None:
        world = self.world()
        room = world.room("room", ["one"])
        self.settle(world)
        one = world.receivers["one"]
        one.otherwise = Reception.BROKEN
        world.say(room)
        world.run(600.0)
        asked = len(world.federation.asked("send", "one"))
        for _ in range(100):
            world.say(room)
            world.run(1.0)
        self.assertLessEqual(len(world.federation.asked("send", "one")) - asked, 3)

    def test_a_destination_that_is_away_has_nothing_in_memory_but_its_name(self) -> None:
        world = self.world()
        room = world.room("room", ["one"])
        self.settle(world)
        world.federation.stop("one")
        for _ in range(30):
            world.say(room)
        world.run(600.0)
        registry = world.senders["sender1"].sender.registry
        queue = registry.queue("one")
        assert queue is not None
        self.assertEqual((queue.pending, queue.edus), ([], None))
        self.assertNotIn("one", registry.unfinished)

    def test_those_that_were_away_at_the_start_come_back_in_small_numbers(self) -> None:
        world = self.world(limits=SendingLimits(returning=4, slow_s=1_000.0))
        names = [f"s{number}" for number in range(40)]
        room = world.room("room", names)
        self.settle(world)
        for name in names:
            world.federation.stop(name)
        said = world.say(room)
        world.run(30.0)
        world.kill_for_good(world.senders.pop("sender1"))
        world.run(20_000.0)
        most = self._count_at_once(world, names)
        for name in names:
            world.federation.start(name)
        world.start_sender("sender1", ["sender1"])
        world.until(
            lambda: all(said.event_id in each.event_ids for each in world.receivers.values())
        )
        self.assertEqual(max(most), 4)

    def _count_at_once(self, world: SendingWorld, names: list[str]) -> list[int]:
        """Have all servers take some seconds, and count how many are asked at the same time."""
        active, most = 0, [0]
        for name in names:
            receiver = world.receivers[name]
            receiver.answer_s = 5.0
            inner = receiver.handle

            async def counting(origin, request, inner=inner):  # type: ignore[no-untyped-def]
                nonlocal active
                active += 1
                most.append(active)
                try:
                    return await inner(origin, request)
                finally:
                    active -= 1

            receiver.handle = counting  # type: ignore[method-assign]
        return most


class RowsTest(SendingCase):
    """What is written grows with what is unusual, not with events and destinations."""

    def test_an_event_to_many_destinations_writes_no_row_for_any(self) -> None:
        world = self.world()
        names = [f"s{number}" for number in range(60)]
        room = world.room("room", names)
        self.settle(world)
        world.run(10.0)
        journal = world.senders["sender1"].sender.journal
        before = journal.rows_written
        for _ in range(3):
            world.say(room)
            world.run(2.0)
        self.settle(world)
        self.assertEqual(journal.rows_written, before)
        self.assertEqual(world.sql("SELECT count(*) FROM synrepl._destination_queues"), [(0,)])

    def test_trying_a_destination_that_is_away_in_vain_writes_no_row(self) -> None:
        world = self.world()
        room = world.room("room", ["one"])
        self.settle(world)
        world.federation.stop("one")
        world.say(room)
        world.run(60.0)
        journal = world.senders["sender1"].sender.journal
        before = journal.rows_written
        world.run(3_000.0)
        self.assertEqual(journal.rows_written, before)

    def test_a_destination_that_is_away_has_one_row_whatever_it_misses(self) -> None:
        world = self.world()
        room = world.room("room", ["one", "two"])
        self.settle(world)
        world.federation.stop("one")
        for _ in range(20):
            world.say(room)
            world.run(1.0)
        rows = world.sql("SELECT destination, is_exact FROM synrepl._destination_queues")
        self.assertEqual(rows, [("one", True)])
        (position,) = world.sql(
            "SELECT position FROM synrepl._destination_partitions WHERE partition = %s",
            partition_of("one"),
        )
        (newest,) = world.sql("SELECT max(stream_id) FROM synrepl.events")
        self.assertGreater(position[0], newest[0] - 3)

    def test_a_partition_moves_on_while_one_of_its_destinations_is_slow(self) -> None:
        world = self.world()
        room = world.room("room", ["one"])
        self.settle(world)
        world.receivers["one"].answer_s = 40.0
        for _ in range(5):
            world.say(room)
        world.run(10.0)
        (position,) = world.sql(
            "SELECT position FROM synrepl._destination_partitions WHERE partition = %s",
            partition_of("one"),
        )
        (newest,) = world.sql("SELECT max(stream_id) FROM synrepl.events")
        self.assertEqual(position, newest)
        self.settle(world)

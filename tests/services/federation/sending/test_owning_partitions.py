"""Each destination is sent to by one process at a time, also when the list of processes changes."""

from __future__ import annotations

from simulator.federation.receiving_server import Reception
from simulator.federation.sending_world import SendingWorld
from simulator.rooms.interruptions import Fault, Interruption
from synrepl.federation.partitions import PARTITIONS, partition_of
from synrepl.services.federation.sending.ownership import TAKEOVER_S, assigned_partitions
from tests.services.federation.sending.sending_case import SendingCase

NAMES = [f"s{number}" for number in range(12)]


class DatabaseAwayAtTimes:
    """Implements :class:`.InterruptsTransactions`: no transaction reaches the database while it is on."""

    def __init__(self) -> None:
        self.is_on = False

    def draw(self, read_only: bool) -> Interruption | None:
        """Whether the database is away."""
        return Interruption(Fault.AWAY, 0, False) if self.is_on else None

    def reached(self, name: str, sql: str) -> None:
        """Nothing else happens."""


class AssignmentTest(SendingCase):
    def test_every_partition_belongs_to_one_process(self) -> None:
        senders = ["a", "b", "c"]
        parts = [assigned_partitions(each, senders) for each in senders]
        self.assertEqual(sorted(number for each in parts for number in each), [*range(PARTITIONS)])

    def test_a_new_process_takes_partitions_and_moves_no_other(self) -> None:
        before = assigned_partitions("a", ["a", "b"])
        after = assigned_partitions("a", ["c", "b", "a"])
        self.assertLess(after, before)

    def test_the_order_of_the_list_does_not_matter(self) -> None:
        self.assertEqual(assigned_partitions("a", ["a", "b"]), assigned_partitions("a", ["b", "a"]))

    def test_partitions_of_names_never_change(self) -> None:
        found = [partition_of(name) for name in ("matrix.org", "example.com:8448", "[::1]")]
        self.assertEqual(found, [58, 58, 30])


class ChangedSendersTest(SendingCase):
    def _busy(self, world: SendingWorld) -> None:
        """Rooms in which every destination has a transaction under way, and more waits."""
        self.room = world.room("room", NAMES)
        self.settle(world)
        for name in NAMES:
            world.receivers[name].answer_s = 3.0
        for _ in range(10):
            world.say(self.room)

    def test_destinations_move_to_another_process_without_loss(self) -> None:
        world = self.world(senders=["a", "b"])
        self._busy(world)
        for each in list(world.senders.values()):
            world.stop_sender(each)
        world.senders.clear()
        for _ in range(5):
            world.say(self.room)
        for name in ("b", "c", "d"):
            world.start_sender(name, ["b", "c", "d"])
        world.say(self.room)
        self.settle(world)

    def test_a_process_that_stops_gives_its_partitions_back_at_once(self) -> None:
        world = self.world(senders=["a"])
        self.room = world.room("room", NAMES)
        self.settle(world)
        world.stop_sender(world.senders.pop("a"))
        world.start_sender("b", ["b"])
        said = world.say(self.room)
        began = world.clock.seconds()
        world.until(lambda: said.event_id in world.receivers["s0"].event_ids)
        self.assertLess(world.clock.seconds() - began, 10.0)
        world.check()

    def test_waits_for_requests_of_a_process_that_did_not_give_its_partitions_back(self) -> None:
        world = self.world(senders=["a"])
        self._busy(world)
        world.kill_for_good(world.senders.pop("a"))
        world.start_sender("b", ["b"])
        began = world.clock.seconds()
        self.settle(world)
        self.assertGreaterEqual(world.clock.seconds() - began, TAKEOVER_S)

    def test_takes_over_when_the_database_is_back_that_was_away_when_the_time_had_come(
        self,
    ) -> None:
        away = DatabaseAwayAtTimes()
        world = self.world(senders=["a"], interruptions=away)
        self._busy(world)
        world.kill_for_good(world.senders.pop("a"))
        owner = world.start_sender("b", ["b"]).sender.owner
        world.until(lambda: len(owner.epochs) == PARTITIONS)
        away.is_on = True
        world.run(TAKEOVER_S + 5.0)
        self.assertEqual(owner.missing, PARTITIONS)
        away.is_on = False
        self.settle(world)
        self.assertEqual(owner.missing, 0)

    def test_the_same_process_continues_at_once(self) -> None:
        world = self.world(senders=["a"])
        self._busy(world)
        world.senders["a"].process.kill()
        began = world.clock.seconds()
        self.settle(world)
        self.assertLess(world.clock.seconds() - began, TAKEOVER_S)

    def test_two_processes_for_the_same_partitions_do_not_both_send(self) -> None:
        world = self.world(senders=["a"])
        self._busy(world)
        world.start_sender("b", ["b"])  # its configuration says that it is the only one
        for _ in range(10):
            world.say(self.room)
            world.run(5.0)
        self.assertEqual(len(world.senders["b"].sender.registry.partitions), 0)
        self.settle(world)

    def test_a_lost_session_ends_sending_until_the_partitions_are_owned_again(self) -> None:
        world = self.world(senders=["a"])
        self._busy(world)
        world.receivers["s1"].next.append(Reception.LOST)
        sender = world.senders["a"]
        sender.database.lose_sessions()
        world.until(lambda: not sender.sender.registry.partitions)
        world.until(lambda: len(sender.sender.registry.partitions) == PARTITIONS)
        world.say(self.room)
        self.settle(world)

    def test_two_processes_share_the_destinations(self) -> None:
        world = self.world(senders=["a", "b"])
        self.room = world.room("room", NAMES)
        self.settle(world)
        owned = [len(each.sender.registry.partitions) for each in world.senders.values()]
        self.assertEqual(sum(owned), PARTITIONS)
        self.assertTrue(all(owned))

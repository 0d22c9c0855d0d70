"""Of several processes with one name on a bus, exactly one gets it; the others send nothing."""

from __future__ import annotations

from unittest import TestCase

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from synrepl.services.announcing.publisher import Publisher
from synrepl.services.bus.bus import Bus
from synrepl.services.bus.bus_publisher import BusPublisher
from synrepl.services.bus.bus_reader import BusReader
from synrepl.services.bus.instance_guard import QUESTIONS, InstanceNameGuard
from synrepl.services.bus.master_subscriber import MasterBusSubscriber
from synrepl.services.bus.own_writer import OwnWriter
from synrepl.streams.rows import RowCodec
from synrepl.wire.commands import Command
from tests.services.manual_pubsub import CATALOGUE, CHANNELS, ManualConnections, ManualPubSub
from tests.services.world import RecordingLog

PRIVATE = "example.org/process/twin"
MACHINE = settings(max_examples=100, stateful_step_count=30, deadline=None)


class TwinProcess:
    """A bus and its guard alone, of a process that calls itself ``twin``.

    They are made here, not assembled, because a test chooses the mark.
    """

    def __init__(self, pubsub: ManualPubSub, mark: str) -> None:
        self.log = RecordingLog()
        self.name_guard = InstanceNameGuard("twin", self.log, mark)
        self._pubsub = pubsub
        names = [stream.name for stream in CATALOGUE]
        publisher = Publisher(pubsub.scheduler, {s.name: RowCodec(s) for s in CATALOGUE})
        reader = self.reader = BusReader("twin", self.log, unparsed=self.name_guard.handle)
        self.received: list[Command] = []
        subscriber = MasterBusSubscriber(self.received.append)
        bus_publisher = BusPublisher(publisher, CHANNELS, OwnWriter(publisher))
        self.bus = Bus(CHANNELS, names, reader, subscriber, bus_publisher, self.name_guard)
        self.connect()

    def connect(self) -> None:
        """New connections, if there are none."""
        self.wires = ManualConnections(
            self._pubsub, CHANNELS.subscriptions((), False, "twin"), self.bus
        )
        self._pubsub.wires.append(self.wires)
        self.bus.connected(self.wires)

    @property
    def away(self) -> bool:
        """It has no connections."""
        return self.wires not in self._pubsub.wires


class ClaimingAName(TestCase):
    def setUp(self) -> None:
        self.pubsub = ManualPubSub()

    def published(self) -> list[tuple[str, str]]:
        self.pubsub.settle()
        published, self.pubsub.published = self.pubsub.published, []
        return [(channel, line.decode()) for channel, line in published]

    def test_claims_its_name_before_it_sends_anything_else(self) -> None:
        one = TwinProcess(self.pubsub, "1")
        self.assertFalse(one.bus.is_connected)
        asked = [(PRIVATE, "HERE 1")] * QUESTIONS
        self.assertEqual(self.published(), [*asked, ("example.org", "REPLICATE ")])
        self.assertTrue(one.bus.is_connected)
        self.assertEqual((one.reader.bad, one.log.lines), (0, []))

    def test_a_second_process_is_refused_until_the_first_is_gone(self) -> None:
        first = TwinProcess(self.pubsub, "2")
        self.published()
        second = TwinProcess(self.pubsub, "1")
        up = b"REMOTE_SERVER_UP other.org"
        for twin in (first, second):
            twin.bus.messages_received([up])
        self.assertEqual((len(first.received), second.received, second.bus.counts), (1, [], {}))
        published = self.published()
        self.assertEqual({channel for channel, _ in published}, {PRIVATE})
        self.assertIn((PRIVATE, "TAKEN 1"), published)
        self.assertTrue(first.bus.is_connected)
        self.assertEqual((second.away, second.name_guard.taken), (True, True))
        second.connect()
        self.published()
        self.assertEqual((second.away, second.name_guard.taken), (True, True))
        message = "another process has come to the bus as 'twin', and is sent away"
        self.assertEqual(first.log.lines, [("warn", message)])  # once
        first.wires.cut()
        second.connect()
        self.published()
        self.assertEqual((second.bus.is_connected, second.name_guard.taken), (True, False))

    def test_claims_its_name_again_on_new_connections(self) -> None:
        one = TwinProcess(self.pubsub, "1")
        self.published()
        one.wires.cut()
        two = TwinProcess(self.pubsub, "2")
        self.published()
        one.connect()
        self.published()
        self.assertEqual((one.bus.is_connected, two.bus.is_connected), (False, True))


class ClaimingMachine(RuleBasedStateMachine):
    """Three of one name come and go, and messages take their time."""

    @initialize()
    def begin(self) -> None:
        """All come at once."""
        self.pubsub = ManualPubSub()
        self.all = [TwinProcess(self.pubsub, str(number)) for number in range(3)]

    @rule(who=st.integers(0, 2), count=st.integers(1, 4))
    def leave(self, who: int, count: int) -> None:
        """Some messages reach the server."""
        self.all[who].wires.leave(count)

    @rule(who=st.integers(0, 2), count=st.integers(1, 4))
    def arrive(self, who: int, count: int) -> None:
        """Some messages reach a process."""
        self.all[who].wires.arrive(count)

    @rule(who=st.integers(0, 2))
    def lose(self, who: int) -> None:
        """A process loses its connections."""
        self.all[who].wires.cut()

    @rule(who=st.integers(0, 2))
    def come_back(self, who: int) -> None:
        """They are made again."""
        if self.all[who].away:
            self.all[who].connect()

    @rule()
    def settle(self) -> None:
        """Everything arrives and all come back: one has the name."""
        for _ in range(2):
            for twin in self.all:
                if twin.away:
                    twin.connect()
            self.pubsub.settle()
        connected = [twin.bus.is_connected for twin in self.all]
        assert sum(connected) == 1, connected
        free_names = [not twin.name_guard.taken for twin in self.all]
        assert free_names == connected, free_names


class ClaimingANameInAnyOrder(TestCase):
    def test_exactly_one_process_gets_the_name(self) -> None:
        run_state_machine_as_test(ClaimingMachine, settings=MACHINE)

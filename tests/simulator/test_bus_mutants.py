"""Defects in what processes say and hear over Redis, made on purpose: the simulator catches each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from simulator.scenario import SimulationScenario
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.bus.bus import Bus
from synrepl.services.bus.bus_publisher import AnnouncedPosition, BusPublisher
from synrepl.services.bus.bus_reader import BusReader
from synrepl.services.bus.own_writer import OwnWriter
from synrepl.services.bus.proxy_announcer import ProxyAnnouncer
from synrepl.streams.definition import Fact, Stream
from synrepl.wire.commands import Command, Position
from tests.simulator.mutants import MutantTestCase


class BusMutantTestCase(MutantTestCase):
    """Where Redis is in use."""

    def may_show(self, scenario: SimulationScenario) -> bool:
        return scenario.redis is not None


class SubscriberDefects(BusMutantTestCase):
    """Mutants of receiving."""

    def test_only_the_first_position_of_a_writer_counts(self) -> None:
        commands = BusReader.commands

        def first_positions(reader: BusReader, messages: Iterable[bytes]) -> list[Command]:
            kept = []
            for command in commands(reader, messages):
                if isinstance(command, Position):
                    key = reader, command.stream, command.writer
                    if key in seen:
                        continue
                    seen.add(key)
                kept.append(command)
            return kept

        seen: set[object] = set()
        self.assert_caught("R3 LIVENESS", (BusReader, "commands", first_positions))

    def test_a_position_is_accepted_without_checking_prev(self) -> None:
        commands = BusReader.commands

        def no_gaps(reader: BusReader, messages: Iterable[bytes]) -> list[Command]:
            return [
                Position(c.stream, c.writer, 0, c.new) if isinstance(c, Position) else c
                for c in commands(reader, messages)
            ]

        self.assert_caught("R3", (BusReader, "commands", no_gaps))

    def test_a_worker_ignores_its_own_messages(self) -> None:
        begin = BusReader.__init__

        def deaf(reader: BusReader, name: str, log: Any, *_: object, **__: object) -> None:
            begin(reader, name, log)

        self.assert_caught("LIVENESS R3", (BusReader, "__init__", deaf))

    def test_replicate_is_not_answered(self) -> None:
        receive = Bus.messages_received

        def silent(bus: Bus, messages: Sequence[bytes]) -> None:
            receive(bus, [message for message in messages if not message.startswith(b"REPLICATE")])

        self.assert_caught("LIVENESS R3", (Bus, "messages_received", silent))

    def test_a_lost_connection_is_not_reported(self) -> None:
        """So what was half read goes on in the next one."""

        def disconnected(bus: Bus) -> None:
            bus._connections = None
            bus._bus_publisher.leave()

        self.assert_caught("R3 R4 LIVENESS", (Bus, "disconnected", disconnected))


class PublisherDefects(BusMutantTestCase):
    """Mutants of the messages."""

    def test_positions_are_not_announced_on_a_new_connection(self) -> None:
        join, announce = BusPublisher.join, BusPublisher.announce

        def quietly(bus_publisher: BusPublisher, wires: Any, streams: Iterable[str]) -> None:
            joining.append(bus_publisher)
            join(bus_publisher, wires, streams)
            joining.remove(bus_publisher)

        def unless_joining(
            bus_publisher: BusPublisher,
            announced_positions: Iterable[AnnouncedPosition] | None = None,
        ) -> None:
            if bus_publisher not in joining:
                announce(bus_publisher, announced_positions)

        joining: list[BusPublisher] = []
        self.assert_caught(
            "R3", (BusPublisher, "join", quietly), (BusPublisher, "announce", unless_joining)
        )

    def test_positions_are_announced_before_buffered_rows(self) -> None:
        announce, flush = BusPublisher.announce, Publisher.flush

        def early(
            bus_publisher: BusPublisher,
            announced_positions: Iterable[AnnouncedPosition] | None = None,
        ) -> None:
            telling.append(bus_publisher._publisher)
            announce(bus_publisher, announced_positions)
            telling.clear()

        def later(publisher: Publisher) -> None:
            if publisher not in telling:
                flush(publisher)

        telling: list[Publisher] = []
        self.assert_caught("R2", (BusPublisher, "announce", early), (Publisher, "flush", later))

    def test_dead_writers_are_not_announced(self) -> None:
        def only_its_own(proxy: ProxyAnnouncer, stream: str, writer: str) -> bool:
            return writer in (proxy._name, "sql")

        self.assert_caught("LIVENESS R3", (ProxyAnnouncer, "_announces_for", only_its_own))

    def test_what_is_found_after_a_loss_is_not_announced(self) -> None:
        def recovered(own: OwnWriter, stream: Stream, facts: Sequence[Fact]) -> None:
            written = own._streams[stream.name]
            written.announced = written.ledger.position

        self.assert_caught("R2 R3 LIVENESS", (OwnWriter, "recovered", recovered))

    def test_writers_that_died_since_the_last_check_are_not_announced(self) -> None:
        unannounced = ProxyAnnouncer.unannounced

        def quiet(proxy: ProxyAnnouncer) -> list[AnnouncedPosition]:
            unannounced(proxy)
            return []

        self.assert_caught("R3 LIVENESS", (ProxyAnnouncer, "unannounced", quiet))

    def test_dead_writers_continue_as_if_everything_was_announced(self) -> None:
        unannounced = ProxyAnnouncer.unannounced

        def chained(proxy: ProxyAnnouncer) -> list[AnnouncedPosition]:
            before = dict(proxy._announced)
            return [
                announced._replace(prev=before.get((announced.stream.name, announced.writer)))
                for announced in unannounced(proxy)
            ]

        self.assert_caught("R3 LIVENESS", (ProxyAnnouncer, "unannounced", chained))

"""Defects of sending to other servers, which its simulation has to find.

These take minutes, so `tox -e mutants` runs them and the tests do not; the seeds that are known need ``PYTHONHASHSEED=0``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import TestCase
from unittest.mock import patch

from simulator.federation.sending_simulation import simulate_sending
from synrepl.services.federation.sending import (
    device_list_fan_out,
    transactions,
)
from synrepl.services.federation.sending.destination_queue import Away, DestinationQueue
from synrepl.services.federation.sending.dispatcher import Dispatcher
from synrepl.services.federation.sending.event_fan_out import EventFanOut
from synrepl.services.federation.sending.handed_over_edus import HandedOverEdus
from synrepl.services.federation.sending.journal import QueueJournal
from synrepl.services.federation.sending.registry import DestinationRegistry
from synrepl.services.federation.sending.sender import FederationSender
from synrepl.services.federation.sending.transactions import OutgoingTransaction, TransactionSender
from synrepl.storage.federation.destination_queues import StoredQueue
from synrepl.storage.federation.missed_events import MissedEvents, missed_events
from synrepl.storage.federation.outgoing_messages import (
    PersistentEdus,
    delete_messages,
    persistent_edus,
)
from tests.simulator.mutants import CAUGHT, known_first

#: The most seeds that a defect may need to show, and the steps of each run.
SEEDS, STEPS = 60, 15


class SendingMutantCase(TestCase):
    """Base of tests of one defect each."""

    def assert_caught(self, rules: str, *mutations: tuple[Any, str, Any]) -> None:
        """At least one seed breaks one of these rules with the defects, and does not without.

        :param mutations: what is to be replaced: owner, name, defect
        """
        with ExitStack() as defects:
            for owner, name, defect in mutations:
                defects.enter_context(patch.object(owner, name, defect))
            for seed in known_first(self.id(), range(1, SEEDS + 1)):
                violations = simulate_sending(seed, STEPS).violations
                if violations:
                    break
            else:
                self.fail(f"{mutations[0][1]}: not caught within {SEEDS} seeds")
        CAUGHT[self.id()] = seed
        print(f"{self.id()}: caught by seed {seed}: {violations[0][:100]}")
        self.assertIn(violations[0].partition(":")[0], rules.split(), violations[0])
        self.assertEqual(simulate_sending(seed, STEPS).violations, [])


class QueueDefects(SendingMutantCase):
    def test_a_position_moves_past_what_waits(self) -> None:
        def position(queue: DestinationQueue, fanned: int) -> int:
            return max(fanned, queue.after)

        self.assert_caught("LOST LATE", (DestinationQueue, "position", position))

    def test_a_destination_that_goes_away_forgets_what_waited(self) -> None:
        real = DestinationQueue.goes_away

        def goes_away(queue: DestinationQueue, away: Away, fanned: int, **named: bool) -> None:
            queue.pending.clear()
            real(queue, away, fanned, **named)

        self.assert_caught("LOST LATE", (DestinationQueue, "goes_away", goes_away))

    def test_a_transaction_of_which_nobody_knows_whether_it_arrived_is_forgotten(self) -> None:
        real = DestinationQueue.restore

        def restore(queue: DestinationQueue, stored: StoredQueue) -> None:
            real(queue, stored._replace(transaction=None))

        self.assert_caught("TWICE LOST", (DestinationQueue, "restore", restore))

    def test_all_of_a_refused_transaction_is_given_up(self) -> None:
        def refused(queue: DestinationQueue) -> bool:
            queue.in_flight = None
            return True

        self.assert_caught("LOST LATE", (DestinationQueue, "refused", refused))

    def test_events_that_were_sent_one_by_one_are_sent_together(self) -> None:
        real = DestinationQueue.__init__

        def init(queue: DestinationQueue, name: str, partition: int, single_upto: int = 0) -> None:
            real(queue, name, partition, 0)

        self.assert_caught("TWICE RECEIVER", (DestinationQueue, "__init__", init))

    def test_events_that_come_while_others_are_read_are_forgotten(self) -> None:
        real = DestinationQueue.loaded

        def loaded(
            queue: DestinationQueue, stream_ids: Sequence[int], upto: int, is_complete: bool
        ) -> None:
            queue.pending.clear()
            real(queue, stream_ids, upto, is_complete)

        self.assert_caught("LOST LATE", (DestinationQueue, "loaded", loaded))

    def test_what_waits_for_a_slow_destination_has_no_limit(self) -> None:
        def add(queue: DestinationQueue, stream_id: int) -> bool:
            queue.pending.append(stream_id)
            return not queue.is_queued and not queue.is_busy and queue.away is None

        self.assert_caught("BOUND TWICE ORDER", (DestinationQueue, "add", add))


class TransactionDefects(SendingMutantCase):
    def test_transactions_are_not_recorded(self) -> None:
        async def record(journal: QueueJournal, queue: DestinationQueue) -> None:
            queue.is_recorded = True

        self.assert_caught("TWICE RECEIVER", (QueueJournal, "record", record))

    def test_a_transaction_has_another_id_when_it_is_sent_again(self) -> None:
        def txn_id(sender: TransactionSender, *_: object) -> str:
            return f"{sender.prefix}-{next(sender._numbers)}-{id(sender)}"

        self.assert_caught("TWICE", (TransactionSender, "_txn_id", txn_id))

    def test_messages_are_deleted_before_they_have_arrived(self) -> None:
        real = TransactionSender.send

        async def send(
            sender: TransactionSender, queue: DestinationQueue, transaction: OutgoingTransaction
        ) -> None:
            await sender._forget_edus(queue, transaction)
            await real(sender, queue, transaction)

        self.assert_caught("LOST LATE", (TransactionSender, "send", send))

    def test_messages_are_read_in_the_wrong_order(self) -> None:
        def newest_first(*arguments: Any) -> dict[str, PersistentEdus]:
            found = persistent_edus(*arguments)
            return {
                name: PersistentEdus(list(reversed(each.messages)), each.pokes)
                for name, each in found.items()
            }

        self.assert_caught("ORDER", (transactions, "persistent_edus", newest_first))

    def test_a_message_is_deleted_that_was_not_sent(self) -> None:
        def delete(txn: Any, delivered: Sequence[tuple[str, int]]) -> None:
            delete_messages(txn, [(name, number + 1) for name, number in delivered])
            delete_messages(txn, delivered)

        self.assert_caught("LOST LATE", (transactions, "delete_messages", delete))

    def test_one_of_the_missed_events_is_not_read(self) -> None:
        def without_one(*arguments: Any) -> MissedEvents:
            found = missed_events(*arguments)
            return found._replace(stream_ids=found.stream_ids[:-1])

        self.assert_caught("LOST LATE", (transactions, "missed_events", without_one))

    def test_more_is_missed_than_is_looked_at(self) -> None:
        def some(
            txn: Any, server: str, own: str, after: int, upto: int, *most: int
        ) -> MissedEvents:
            return missed_events(txn, server, own, max(after, upto - 5), upto, *most)

        self.assert_caught("LOST LATE", (transactions, "missed_events", some))

    def test_a_change_of_devices_is_forgotten_when_nobody_could_be_told(self) -> None:
        real = TransactionSender._build

        async def build(
            sender: TransactionSender, queue: DestinationQueue
        ) -> OutgoingTransaction | None:
            found = await real(sender, queue)
            if found is not None and found.pokes:
                await sender._done.get(
                    transactions.DeliveredEdus(queue.name, (), tuple(found.pokes))
                )
            return found

        self.assert_caught("LOST LATE", (TransactionSender, "_build", build))


class OwnershipDefects(SendingMutantCase):
    def test_queues_of_partitions_that_were_lost_go_on(self) -> None:
        def lose_all(registry: DestinationRegistry) -> None:
            registry.partitions.clear()
            registry.unfinished.clear()
            registry._queues.clear()
            registry._targets.clear()

        self.assert_caught("ALONE TWICE CRASH", (DestinationRegistry, "lose_all", lose_all))

    def test_a_partition_that_was_claimed_begins_where_the_others_are(self) -> None:
        async def claimed(sender: FederationSender, claims: Any, settled: int) -> None:
            await real(sender, [each._replace(position=settled) for each in claims], settled)

        real = FederationSender._claimed
        self.assert_caught("LOST LATE", (FederationSender, "_claimed", claimed))

    def test_what_the_last_owner_left_is_not_read(self) -> None:
        def claimed(registry: DestinationRegistry, partitions: Any, stored: Any) -> Any:
            return real(registry, partitions, [])

        real = DestinationRegistry.claimed
        self.assert_caught("LOST LATE TWICE", (DestinationRegistry, "claimed", claimed))


class FollowingDefects(SendingMutantCase):
    def test_a_position_moves_before_its_events_are_passed_on(self) -> None:
        real: Callable[..., Any] = EventFanOut._pass_on

        def pass_on(events: EventFanOut, servers: Any, after: int) -> None:
            events._move(after, servers.stream_id)
            real(events, servers, after)

        self.assert_caught("LOST LATE", (EventFanOut, "_pass_on", pass_on))

    def test_a_destination_with_more_to_get_is_not_sent_to_again(self) -> None:
        real: Callable[..., Any] = Dispatcher.wake

        def wake(dispatcher: Dispatcher, queue: DestinationQueue) -> None:
            if queue.waiting_since == 0.0:
                real(dispatcher, queue)

        self.assert_caught("LATE", (Dispatcher, "wake", wake))

    def test_nobody_is_told_of_changed_devices(self) -> None:
        def add_pokes(txn: object, pokes: object) -> None:
            pass

        self.assert_caught("LATE", (device_list_fan_out, "add_pokes", add_pokes))

    def test_what_is_handed_over_is_acknowledged_and_dropped(self) -> None:
        async def on_rows(handler: HandedOverEdus, batch: Any) -> None:
            handler._commands().federation_ack(batch.upto)

        self.assert_caught("LOST", (HandedOverEdus, "on_rows", on_rows))

    def test_more_is_acknowledged_than_was_handed_over(self) -> None:
        real: Callable[..., Any] = HandedOverEdus.on_rows

        async def on_rows(handler: HandedOverEdus, batch: Any) -> None:
            await real(handler, replace(batch, upto=batch.upto + 1))

        self.assert_caught("ACK", (HandedOverEdus, "on_rows", on_rows))

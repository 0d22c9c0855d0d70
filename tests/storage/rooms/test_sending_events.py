"""Events that are built and persisted in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from signedjson.key import generate_signing_key

from synrepl.rooms import BadEvent, EventBuilder, EventDraft, NoCanonicalJson, Room, parse_event
from synrepl.storage.database import Transaction, UniqueViolation
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.persisting.persist_run import PersistRun
from synrepl.storage.rooms.persisting.send_run import (
    EventNotAllowed,
    OutgoingEvent,
    RedactedEventUnknown,
)
from synrepl.storage.rooms.tables.events import events_by_id, raw_json
from synrepl.storage.rooms.tables.incoming import NotStorable, PersistedEvent
from synrepl.storage.rooms.tables.numbers import UnknownRoom
from synrepl.storage.rooms.tables.sent_events import (
    SENT_CONSTRAINT,
    SentRequest,
    find_sent,
    forget_sent,
)
from synrepl.storage.rooms.timelines.event_sources import read_answer_rows
from synrepl.storage.short_work import Opening
from tests.rooms.auth_rooms import ALICE, CAROL
from tests.rooms.small_rooms import SmallRoom
from tests.storage.rooms.store_case import PersistingProcess, StoreCase

DAVE = "@dave:a"


class SendingCase(StoreCase):
    """A small room, to which events are sent."""

    version = "10"

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.small = SmallRoom(self.version, {ALICE: 100})
        self.room_id = self.small.create.room_id
        self.builder = EventBuilder(self.small.version, "a", generate_signing_key("1"))
        self.ways: list[str] = []
        opening, call = PersistRun.opening, PersistRun.__call__

        def noted_opening(run: PersistRun, outbox: Outbox) -> Opening | None:
            found = opening(run, outbox)
            self.ways += ["short"] if found is not None else []
            return found

        def noted_call(run: PersistRun, txn: Transaction, outbox: Outbox) -> PersistRun:
            self.ways.append("thread")
            return call(run, txn, outbox)

        self.patch(PersistRun, "opening", noted_opening)
        self.patch(PersistRun, "__call__", noted_call)
        self.base = [*self.small.base, self.small.carol]
        await self.one.persist(self.room_id, self.small.version, self.base)

    async def send(
        self,
        content: Mapping[str, Any],
        *,
        sender: str = ALICE,
        kind: str = "m.room.message",
        key: str | None = None,
        redacts: str | None = None,
        request: SentRequest | None = None,
        memberships: Collection[str] | None = None,
        by: PersistingProcess | None = None,
        room_id: str | None = None,
    ) -> PersistedEvent:
        """Send an event."""
        process = by or self.one
        await self.until(lambda: process.process.short.is_idle)
        self.ways.clear()
        draft = EventDraft(kind, sender, content, 1_000, key, redacts)
        outgoing = OutgoingEvent(draft, request, memberships)
        return await process.persister.send(room_id or self.room_id, self.builder, outgoing)

    async def member(self, user: str, membership: str, by_user: str | None = None) -> None:
        """Set a membership."""
        content = {"membership": membership}
        await self.send(content, sender=by_user or user, kind="m.room.member", key=user)

    async def check(self, *sent: PersistedEvent) -> None:
        """The store has what a room in memory has that received the base and these events, all of them accepted."""

        def read(txn: Transaction) -> list[bytes]:
            rows = events_by_id(txn, [each.event_id for each in sent])
            raws = raw_json(txn, list(rows.values()))
            return [raws[each.event_id] for each in sent]

        room = Room(self.small.version)
        for event in self.base:
            room.receive(event)
        for raw in await self.read(read):
            (judged,) = room.receive(parse_event(raw, self.small.version))
            self.assertTrue(judged.passed_all_checks)
        await self.check_equal(room)


class SendingEvents(SendingCase):
    """Events of users of this server."""

    async def test_a_room_that_is_remembered_takes_two_round_trips(self) -> None:
        sent = [await self.send({"body": "first of its type"})]
        self.assertEqual(self.ways, ["thread"])
        for number in range(3):
            sent.append(await self.send({"body": str(number)}))
            self.assertEqual(self.ways, ["short"])
        sent.append(await self.send({"topic": "first"}, kind="m.room.topic", key=""))
        sent.append(await self.send({"topic": "x"}, kind="m.room.topic", key=""))
        self.assertEqual(self.ways, ["short"])
        await self.check(*sent)

    async def test_a_room_that_is_not_remembered_is_read(self) -> None:
        first = await self.send({"body": "1"})
        self.one.forget()
        second = await self.send({"body": "2"})
        self.assertEqual(self.ways, ["thread"])
        await self.check(first, second)

    async def test_an_event_follows_all_forward_extremities(self) -> None:
        forks = [self.small.message(self.small.carol, body=str(n)) for n in range(3)]
        await self.one.persist(self.room_id, self.small.version, forks)
        self.base += forks
        await self.check(await self.send({"body": "joins them"}), await self.send({"body": "next"}))

    async def test_a_room_that_another_process_changed_is_built_on_anew(self) -> None:
        two = await self.start_process("two")
        sent = [await self.send({"body": "1"})]
        sent.append(await self.send({"body": "2"}, by=two))
        sent.append(await self.send({"body": "3"}))
        sent.append(await self.send({"body": "4"}, by=two))
        await self.check(*sent)
        ends = await self.read(
            lambda txn: txn.execute("SELECT count(*) FROM synrepl._forward_extremities").fetchone()
        )
        self.assertEqual(ends, (1,))

    async def test_what_the_rules_refuse_is_not_stored_and_the_room_stays_remembered(self) -> None:
        sent = [await self.send({"body": "1"})]
        for _ in range(2):
            with self.assertRaises(EventNotAllowed) as raised:
                await self.send({"body": "no"}, sender=DAVE)
            self.assertIn(DAVE, str(raised.exception))
        sent.append(await self.send({"body": "2"}))
        self.assertEqual(self.ways, ["short"])
        await self.check(*sent)

    async def test_what_cannot_be_an_event_is_refused(self) -> None:
        sent = await self.send({"body": "1"})
        for error, content in (
            (NoCanonicalJson, {"n": float("nan")}),
            (BadEvent, {"n": 1.5}),
            (BadEvent, {"n": 2**60}),
            (BadEvent, {"body": "x" * 70_000}),
        ):
            with self.assertRaises(error):
                await self.send(content)
        with self.assertRaises(NotStorable):
            await self.send({}, kind="a\0b")
        with self.assertRaises(BadEvent):
            await self.send({}, kind="x" * 300)
        await self.check(sent)

    async def test_a_room_that_is_not_here_is_unknown(self) -> None:
        for room_id in ("!none:a", "!a\0b:a"):
            with self.assertRaises(UnknownRoom):
                await self.send({"body": "x"}, room_id=room_id)
        self.assertEqual(await self.read(lambda txn: _count(txn, "_rooms")), 1)

    async def test_a_condition_on_the_membership_is_checked(self) -> None:
        content = {"membership": "leave"}
        with self.assertRaises(EventNotAllowed):
            await self.send(content, kind="m.room.member", key=CAROL, memberships=("ban",))
        with self.assertRaises(EventNotAllowed):
            await self.send(content, kind="m.room.member", key=DAVE, memberships=("join",))
        sent = await self.send(content, kind="m.room.member", key=CAROL, memberships=("join",))
        await self.check(sent)


class SendingRedactions(SendingCase):
    """Redactions, whose senders must be able to redact what they name."""

    async def redact(self, sender: str, event_id: str) -> PersistedEvent:
        return await self.send({}, sender=sender, kind="m.room.redaction", redacts=event_id)

    async def test_own_events_and_with_power_those_of_others_are_redacted(self) -> None:
        by_carol = await self.send({"body": "1"}, sender=CAROL)
        second = await self.send({"body": "2"}, sender=CAROL)
        await self.redact(CAROL, by_carol.event_id)
        await self.redact(ALICE, second.event_id)
        for each in (by_carol, second):
            row = (await self.read(lambda txn, each=each: events_by_id(txn, [each.event_id])))[
                each.event_id
            ]
            self.assertIsNotNone(row.redacted_by)

    async def test_events_of_others_are_not_redacted_without_power(self) -> None:
        by_alice = await self.send({"body": "1"})
        with self.assertRaises(EventNotAllowed):
            await self.redact(CAROL, by_alice.event_id)
        await self.check(by_alice)

    async def test_what_is_redacted_must_be_in_the_room(self) -> None:
        for event_id in ("$none", "$a\0b", self.base[0].event_id[:-1]):
            with self.assertRaises(RedactedEventUnknown):
                await self.redact(ALICE, event_id)
        await self.check()


class NewRedactions(SendingRedactions):
    """The same where the target is in the content."""

    version = "11"


class TransactionIds(SendingCase):
    """Requests with a transaction ID."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.request = SentRequest(ALICE, "D", f"send {self.room_id} m.room.message", "1")

    async def test_the_record_is_written_with_the_event(self) -> None:
        for number in range(2):
            request = self.request._replace(txn_id=str(number))
            sent = await self.send({"body": "x"}, request=request)
            found = await self.read(lambda txn, request=request: find_sent(txn, request))
            assert found is not None
            self.assertEqual(found, (sent.event_id, sent.stream_id, "one"))
        number = "SELECT event_no FROM synrepl._room_events WHERE event_id = %s"

        def transaction_ids(txn: Transaction, device_id: str) -> Mapping[str, str]:
            event_no = txn.execute(number, (sent.event_id,)).fetchone()[0]
            return read_answer_rows(txn, [], [event_no], ALICE, device_id).sent

        ids = await self.read(lambda txn: transaction_ids(txn, "D"))
        self.assertEqual(ids, {sent.event_id: "1"})
        self.assertEqual(await self.read(lambda txn: transaction_ids(txn, "E")), {})

    async def test_a_second_event_for_a_request_is_not_stored(self) -> None:
        first = await self.send({"body": "1"}, request=self.request)
        second = await self.send({"body": "2"})
        for _ in range(2):
            with self.assertRaises(UniqueViolation) as raised:
                await self.send({"body": "again"}, request=self.request)
            self.assertEqual(raised.exception.constraint, SENT_CONSTRAINT)
        await self.check(first, second)

    async def test_requests_differ_by_user_device_endpoint_and_transaction_id(self) -> None:
        same = self.request._replace(txn_id="1")
        self.assertEqual(self.request.digest, same.digest)
        for field in self.request._fields:
            other = self.request._replace(**{field: "other"})
            self.assertNotEqual(other.digest, same.digest)
        split = SentRequest("a", "bc", "d", "e"), SentRequest("ab", "c", "d", "e")
        self.assertNotEqual(split[0].digest, split[1].digest)

    async def test_nothing_is_recorded_of_what_is_refused(self) -> None:
        with self.assertRaises(EventNotAllowed):
            await self.send({}, sender=DAVE, request=self.request)
        self.assertIsNone(await self.read(lambda txn: find_sent(txn, self.request)))

    async def test_records_are_deleted_by_age(self) -> None:
        for number in range(3):
            await self.send({}, request=self.request._replace(txn_id=str(number)))
        self.assertEqual(await self.read(lambda txn: forget_sent(txn, 3600, 10)), 0)
        self.assertEqual(await self.read(lambda txn: forget_sent(txn, -1, 2)), 2)
        self.assertEqual(await self.read(lambda txn: forget_sent(txn, -1, 2)), 1)


def _count(txn: Transaction, table: str) -> int:
    return int(txn.execute(f"SELECT count(*) FROM synrepl.{table}").fetchone()[0])

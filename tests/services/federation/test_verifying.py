"""Events of other servers are verified in threads, with keys that are fetched as needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st
from signedjson.key import get_verify_key
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.worker_threads import WorkerThreads
from synrepl.rooms import (
    Event,
    EventBuilder,
    EventDraft,
    Keys,
    ReceiptVerdict,
    ServerKey,
    check_on_receipt,
    keys_of,
    room_version,
)
from synrepl.services.federation.verifying import SLICE, EventVerifier
from tests.federation.recordings import VERSIONS, answer, keys
from tests.services.federation.key_servers import DAY_MS, KeyServer
from tests.services.federation.keys_case import NOW_MS, KeysCase
from tests.storage.postgres import reactor

T = TypeVar("T")
ROOM = "!r:a.example"


class InThisThread:
    """Runs work at once."""

    concurrency = 1

    async def run(self, work: Callable[[], T]) -> T:
        return work()


class KnownKeys:
    """Knows all keys there are from the start."""

    def __init__(self, known: Keys) -> None:
        self._keys = known
        self.wanted: list[Any] = []

    async def known(self, servers: Any) -> Keys:
        return self._keys

    async def for_events(self, wanted: Any) -> Keys:
        self.wanted.append(wanted)
        return self._keys


class VerifyingCase(KeysCase):
    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.threads = WorkerThreads(reactor, "signatures", 2)
        self.addCleanup(self.threads.stop)
        self.verifier = EventVerifier(self.scheduler, self.ring, self.threads, self)

    def event(self, server: KeyServer, number: int, at: int = NOW_MS, version: str = "11") -> Event:
        """An event that a server has signed."""
        builder = EventBuilder(room_version(version), server.name, server.key)
        draft = EventDraft("m.x", f"@u{number}:{server.name}", {"n": number}, at)
        return builder.assemble(draft, ROOM)

    async def verdicts(self, *events: Event | bytes, version: str = "11") -> list[str]:
        """The verdict or the reason of each."""
        raws = [each if isinstance(each, bytes) else each.raw for each in events]
        results = await self.verifier.verify(raws, room_version(version), origin="b.example")
        return [
            result.verdict.value if result.refusal is None else result.refusal.code
            for result in results
        ]


class Verifies(VerifyingCase):
    async def test_only_events_that_are_wanted_are_verified(self) -> None:
        server = self.add("a.example")
        events = [self.event(server, number) for number in range(4)]
        asked: list[set[str]] = []

        async def choose(event_ids: Collection[str]) -> Collection[str]:
            asked.append(set(event_ids))
            return [events[1].event_id, events[3].event_id, "$other"]

        raws = [*(each.raw for each in events), b"{}"]
        results = await self.verifier.verify(raws, room_version("11"), choose=choose)
        self.assertEqual(asked, [{each.event_id for each in events}])
        self.assertEqual(
            [each.event and each.event.event_id for each in results],
            [events[1].event_id, events[3].event_id, None],
        )
        self.assertEqual(self.verifier.verified, 3)

    async def test_many_events_of_many_servers_with_one_fetch_of_each_key(self) -> None:
        servers = [self.add(f"{number}.example") for number in range(5)]
        events = [self.event(servers[number % 5], number) for number in range(5 * SLICE + 3)]
        raws = [each.raw for each in events]
        results = await self.verifier.verify(raws, room_version("11"))
        self.assertEqual(
            [result.verdict for result in results], [ReceiptVerdict.ACCEPT] * len(raws)
        )
        self.assertEqual(
            [result.event and result.event.event_id for result in results],
            [each.event_id for each in events],
        )
        self.assertCountEqual(self.servers.asked, [server.name for server in servers])
        self.assertEqual((self.verifier.verified, self.verifier.dropped), (len(raws), 0))

    async def test_that_what_is_wrong_is_dropped_beside_what_is_right(self) -> None:
        server, stranger = self.add("a.example"), KeyServer("a.example", NOW_MS, "x")
        away = self.add("away.example")
        away.is_away = True
        right = self.event(server, 1)
        fields = json.loads(self.event(server, 2).raw)
        unsigned = json.dumps(fields | {"signatures": {}}).encode()
        changed = json.dumps(fields | {"content": {"n": 3}}).encode()
        moved = json.dumps(fields | {"depth": 77}).encode()
        verdicts = await self.verdicts(
            right,
            b"5",
            b"{}",
            unsigned,
            changed,
            moved,
            self.event(stranger, 3),
            self.event(away, 4),
            right,
        )
        self.assertEqual(
            verdicts,
            [
                "accept",
                "no-event",
                "no-event",
                "not-signed",
                "wrong-hash",
                "bad-signature",
                "unknown-key",
                "unknown-key",
                "accept",
            ],
        )
        self.assertEqual(self.verifier.dropped, 6)
        self.assertIn("6 of 9 events from b.example are dropped", self.messages[-1])

    async def test_with_keys_that_were_replaced(self) -> None:
        server = self.add("a.example")
        before = self.event(server, 1, NOW_MS - 5)
        too_late = self.event(server, 2, NOW_MS + 5)
        server.rotate("b", NOW_MS)
        after = self.event(server, 3, NOW_MS + 5)
        self.assertEqual(
            await self.verdicts(before, too_late, after), ["accept", "expired-key", "accept"]
        )

    async def test_with_a_key_that_has_to_be_fetched_again(self) -> None:
        server = self.add("a.example", days=1)
        self.assertEqual(await self.verdicts(self.event(server, 1)), ["accept"])
        self.clock.advance(2 * DAY_MS / 1000)
        server.valid_until_ms += 3 * DAY_MS
        later = self.event(server, 2, NOW_MS + 2 * DAY_MS)
        self.assertEqual(await self.verdicts(later), ["accept"])
        self.assertEqual(len(self.servers.asked), 2)

    async def test_that_events_of_the_far_future_cost_no_fetch(self) -> None:
        server = self.add("a.example")
        await self.verdicts(self.event(server, 1))
        self.clock.advance(1000)
        future = self.event(server, 2, NOW_MS + 100 * DAY_MS)
        self.assertEqual(await self.verdicts(future), ["expired-key"])
        self.assertEqual(len(self.servers.asked), 1)
        # Older versions do not look at the time.
        self.assertEqual(
            await self.verdicts(self.event(server, 3, NOW_MS + 100 * DAY_MS, "4"), version="4"),
            ["accept"],
        )

    async def test_that_few_keys_are_fetched_for_an_event_with_many_signatures(self) -> None:
        server = self.add("a.example")
        fields = json.loads(self.event(server, 1).raw)
        odd = {f"ed25519:x{number}": "A" * 86 for number in range(30)}
        fields["signatures"]["a.example"] = odd
        fields["signatures"] |= {f"{number}.example": odd for number in range(10)}
        event = json.dumps(fields).encode()
        self.assertEqual(await self.verdicts(event), ["unknown-key"])
        self.assertEqual(self.servers.asked, ["a.example"])
        nothing = KnownKeys({})
        await EventVerifier(self.scheduler, nothing, self.threads, self).verify(
            [event], room_version("11")
        )
        (wanted,) = nothing.wanted
        self.assertEqual({name: len(keys) for name, keys in wanted.items()}, {"a.example": 5})

    async def test_nothing(self) -> None:
        self.assertEqual(await self.verdicts(), [])

    async def test_recorded_rooms(self) -> None:
        for version in VERSIONS:
            known = KnownKeys(keys_of(keys(version)))
            verifier = EventVerifier(self.scheduler, known, self.threads, self)
            document = json.loads(answer(version, "send_join-full"))
            raws = [
                json.dumps(each).encode() for each in document["state"] + document["auth_chain"]
            ]
            results = await verifier.verify(raws, room_version(version))
            self.assertEqual({result.verdict for result in results}, {ReceiptVerdict.ACCEPT})


class TheSameAsOneByOne(SynchronousTestCase):
    @settings(max_examples=50)
    @given(st.lists(st.integers(0, 9), max_size=120))
    def test_whatever_the_order(self, kinds: list[int]) -> None:
        version = room_version("11")
        raws = [_RAWS[kind] for kind in kinds]
        clock = Clock()
        verifier = EventVerifier(
            TwistedScheduler(clock), KnownKeys(_KEYS), replace_concurrency(3), NullLog()
        )
        found = self.successResultOf(Deferred.fromCoroutine(verifier.verify(raws, version)))
        expected = [check_on_receipt(raw, version, _KEYS) for raw in raws]
        self.assertEqual(
            [(each.verdict, each.refusal, each.event and each.event.event_id) for each in found],
            [(each.verdict, each.refusal, each.event and each.event.event_id) for each in expected],
        )


class NullLog:
    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        """Nothing."""

    warn = info


def replace_concurrency(concurrency: int) -> InThisThread:
    threads = InThisThread()
    threads.concurrency = concurrency
    return threads


def _some_raws() -> tuple[list[bytes], Keys]:
    """Events of which some are right and some are wrong in each way."""
    server, other = KeyServer("a.example", NOW_MS), KeyServer("b.example", NOW_MS)
    builder = EventBuilder(room_version("11"), server.name, server.key)
    draft = EventDraft("m.x", "@u:a.example", {"n": 1}, 5)
    right = builder.assemble(draft, ROOM)
    foreign = EventBuilder(room_version("11"), other.name, other.key).assemble(
        draft._replace(sender="@u:b.example"), ROOM
    )
    fields = json.loads(right.raw)
    authorised = {"membership": "join", "join_authorised_via_users_server": 5}
    member = builder.assemble(
        draft._replace(type="m.room.member", content=authorised, state_key="@u:a.example"), ROOM
    )
    wrong = [
        b"",
        b"5",
        foreign.raw,
        member.raw,
        *(
            json.dumps(fields | change).encode()
            for change in (
                {"signatures": {}},
                {"signatures": {"a.example": {"ed25519:zz": "AAAA"}}},
                {"content": {"n": 2}},
                {"depth": 9},
                {"sender": "@u:b.example"},
            )
        ),
    ]
    known = {"a.example": {server.key_id: ServerKey(get_verify_key(server.key))}}
    return [right.raw, *wrong], known


_RAWS, _KEYS = _some_raws()

"""Servers of pure rooms: they behave like resident servers, and their faults like those of bad ones."""

from __future__ import annotations

from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar
from urllib.parse import quote

import orjson
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from simulator.clock import Process, VirtualClock
from simulator.federation.faults import FaultKind, ServerFault
from simulator.federation.hosted_room import HostedRoom
from simulator.federation.in_memory import InMemoryFederation
from simulator.federation.joining import completed
from simulator.federation.outgoing import AnsweredWithError
from simulator.federation.pure_server import PureServer
from synrepl.federation.errors import AnswerTooLarge, DestinationAway
from synrepl.federation.requests import FederationRequest
from synrepl.rooms import (
    PartialJoin,
    Room,
    StateMap,
    check_on_receipt,
    join_partially,
    parse_event,
    resync,
)

T = TypeVar("T")

ALICE, BOB, EVE = "@alice:a", "@bob:b", "@eve:elsewhere"


class FederationCase(TestCase):
    """Servers ``a`` and ``b``, and a clock."""

    def setUp(self) -> None:
        self.clock = VirtualClock()
        self.failures: list[Failure] = []
        self.process = Process(
            self.clock,
            "test",
            lambda name, failure: self.failures.append(failure),
            Random(1).random,
        )
        self.addCleanup(self.process.dispose)
        self.federation = InMemoryFederation(self.process, latency_s=0.1)
        self.a, self.b = (PureServer(name, self.federation) for name in "ab")

    def run_all(self, work: Coroutine[Any, Any, T], within_s: float = 1_000) -> T:
        """The result of a coroutine."""
        done: Deferred[T] = self.process.start(work)
        until = self.clock.seconds() + within_s
        while not done.called and self.clock.run_next(until):
            pass
        self.assertEqual(self.failures, [])
        return self.successResultOf(done)

    def error_of(self, kind: type[Exception], work: Coroutine[Any, Any, object]) -> Exception:
        """The error of a coroutine."""

        async def caught() -> Exception:
            try:
                await work
            except kind as error:
                return error
            raise AssertionError(f"no {kind}")

        return self.run_all(caught())


class HonestServers(FederationCase):
    def made(self, version: str = "10") -> HostedRoom:
        return self.a.create_room(version, ALICE)

    def assert_same(self, room_id: str) -> None:
        one, other = (each.rooms[room_id].room for each in (self.a, self.b))
        self.assertEqual(one.forward_extremities, other.forward_extremities)
        self.assertEqual(one.current_state(), other.current_state())

    def test_a_user_of_another_server_joins_in_each_room_version(self) -> None:
        for version in map(str, range(1, 13)):
            with self.subTest(version):
                room = self.a.create_room(version, ALICE, name=f"room{version}")
                self.run_all(self.b.join(room.room_id, BOB, "a"))
                self.a.send(room.room_id, "m.room.message", ALICE, {"body": "hello"})
                self.b.send(room.room_id, "m.room.topic", BOB, {"topic": "x"}, "")  # refused
                self.b.send(room.room_id, "m.room.message", BOB, {"body": "hello"})
                self.run_all(self.a.outgoing.send_all())
                self.run_all(self.b.outgoing.send_all())
                self.assert_same(room.room_id)
                self.assertEqual(room.servers(), {"a", "b"})

    def test_a_gap_is_filled(self) -> None:
        room_id = self.made().room_id
        self.run_all(self.b.join(room_id, BOB, "a"))
        self.federation.cut("a", "b")
        for number in range(30):
            self.a.send(room_id, "m.room.name", ALICE, {"name": str(number)}, "")
        self.b.send(room_id, "m.room.message", BOB, {})
        self.run_all(self.a.outgoing.send_all())
        self.assertEqual(len(self.a.outgoing.queues["b"]), 30)
        self.a.outgoing.queues.clear()
        self.federation.heal("a", "b")
        self.a.send(room_id, "m.room.message", ALICE, {})
        self.run_all(self.a.outgoing.send_all())
        self.run_all(self.b.outgoing.send_all())
        self.assertEqual(len(self.b.rooms[room_id].servers()), 2)
        self.assertIn("29", str(self.b.rooms[room_id].current(("m.room.name", "")).content))  # type: ignore[union-attr]

    def test_a_partial_answer_and_the_states_make_the_same_room(self) -> None:
        room = self.made()
        for number in range(5):
            user = f"@u{number}:s{number}"
            self.a.send(room.room_id, "m.room.member", user, {"membership": "join"}, user)
        path = (
            f"/_matrix/federation/v1/make_join/{quote(room.room_id, safe='')}/{quote(BOB, safe='')}"
        )
        ask = self.b.outgoing.ask
        template = self.run_all(ask("GET", "a", path, [("ver", "10")]))
        join = completed(self.b, room.version, template["event"])
        path = f"/_matrix/federation/v2/send_join/{quote(room.room_id, safe='')}/x"
        query = [("omit_members", "true")]
        answer = self.run_all(ask("PUT", "a", path, query, join.raw))
        checked = self.b.outgoing.checked
        partial = join_partially(
            Room(room.version),
            PartialJoin(
                join,
                list(checked(answer["state"], room.version)),
                list(checked(answer["auth_chain"], room.version)),
                frozenset(answer["servers_in_room"]),
            ),
            "b",
        )
        self.assertEqual(len(answer["servers_in_room"]), 6)
        self.assertLess(len(partial.room.current_state()), len(room.room.current_state()))
        self.assertTrue(answer["members_omitted"])
        for each in room.room:
            partial.add_outliers([each.event])
        state: StateMap = room.room.state_before(join.event_id).as_dict()
        resync(partial, {join.event_id: state})
        self.assertEqual(partial.room.current_state(), room.room.current_state())

    def test_answers_have_valid_events(self) -> None:
        room_id = self.made().room_id
        self.run_all(self.b.join(room_id, BOB, "a"))
        newest = next(iter(self.a.rooms[room_id].room.forward_extremities))
        path = f"/_matrix/federation/v1/backfill/{quote(room_id, safe='')}"
        answer = self.run_all(
            self.b.outgoing.ask("GET", "a", path, [("v", newest), ("limit", "3")])
        )
        version = self.a.rooms[room_id].version
        self.assertEqual(len(answer["pdus"]), 3)
        for pdu in answer["pdus"]:
            checked = check_on_receipt(orjson.dumps(pdu), version, self.federation.keys)
            self.assertIsNone(checked.refusal)

    def test_a_server_that_is_not_in_the_room_hears_nothing(self) -> None:
        room_id = self.made().room_id
        path = f"/_matrix/federation/v1/state_ids/{quote(room_id, safe='')}"
        newest = next(iter(self.a.rooms[room_id].room.forward_extremities))
        error = self.error_of(
            AnsweredWithError, self.b.outgoing.ask("GET", "a", path, [("event_id", newest)])
        )
        self.assertIn("403", str(error))

    def test_restricted_rooms_are_joined_by_members_of_another_room(self) -> None:
        first = self.a.create_room("10", ALICE, name="first")
        second = self.a.create_room("10", ALICE, name="second", join_rule="restricted")
        rules = {
            "join_rule": "restricted",
            "allow": [{"type": "m.room_membership", "room_id": first.room_id}],
        }
        self.a.send(second.room_id, "m.room.join_rules", ALICE, rules, "")
        refused = self.b.join(second.room_id, BOB, "a")
        self.assertIn("403", str(self.error_of(AnsweredWithError, refused)))
        self.run_all(self.b.join(first.room_id, BOB, "a"))
        self.run_all(self.b.join(second.room_id, BOB, "a"))
        joined = second.current(("m.room.member", BOB))
        assert joined is not None
        self.assertEqual(joined.content["join_authorised_via_users_server"], ALICE)
        self.assertEqual(set(joined.signatures), {"a", "b"})


class Links(FederationCase):
    def test_nobody_listens(self) -> None:
        self.federation.stop("a")
        path = "/_matrix/key/v2/server"
        self.error_of(DestinationAway, self.b.outgoing.ask("GET", "a", path))
        self.federation.start("a")
        keys = self.run_all(self.b.outgoing.ask("GET", "a", path))
        self.assertEqual(keys["server_name"], "a")

    def test_an_answer_that_never_comes_is_an_error_in_time(self) -> None:
        self.a.faults.append(ServerFault("keys", FaultKind.NO_ANSWER))
        begun = self.clock.seconds()
        self.error_of(DestinationAway, self.b.outgoing.ask("GET", "a", "/_matrix/key/v2/server"))
        self.assertEqual(round(self.clock.seconds() - begun), 30)

    def test_an_answer_that_is_too_large(self) -> None:
        self.a.faults.append(ServerFault("keys", FaultKind.TOO_LARGE))
        self.error_of(AnswerTooLarge, self.b.outgoing.ask("GET", "a", "/_matrix/key/v2/server"))


class Faults(FederationCase):
    """Each fault changes the answers that it is made for."""

    #: Faults of others than ``state``.
    ELSEWHERE = {  # noqa: RUF012
        FaultKind.NO_SERVERS: "send_join",
        FaultKind.MANY_SERVERS: "send_join",
        FaultKind.MANY_PARENTS: "make_join",
        FaultKind.UNKNOWN_EVENTS: "state_ids",
    }

    def setUp(self) -> None:
        super().setUp()
        self.room = self.a.create_room("1", ALICE)
        self.a.create_room("1", ALICE, name="other")
        for membership in ("join", "leave"):
            content = {"membership": membership}
            self.a.send(self.room.room_id, "m.room.member", EVE, content, EVE)
        self.run_all(self.b.join(self.room.room_id, BOB, "a"))

    def answer(self, endpoint: str) -> bytes:
        """The bytes of an answer."""
        room_path = quote(self.room.room_id, safe="")
        newest = next(iter(self.room.room.forward_extremities))
        version, method, path = "v1", "GET", room_path
        query: list[tuple[str, str]] = [("event_id", newest)]
        content = None
        if endpoint == "make_join":
            path = f"{room_path}/{quote('@new:b', safe='')}"
        if endpoint == "send_join":
            version, method, path = "v2", "PUT", f"{room_path}/x"
            query = [("omit_members", "true")]
            content = self.room.event(newest).raw
        request = FederationRequest(
            method, "a", f"/_matrix/federation/{version}/{endpoint}/{path}", query, content
        )
        answer = self.run_all(self.federation.transport("b").send(request))
        return bytes([answer.status % 256]) + answer.body.read(10**7)

    def test_each_fault_changes_the_answer_and_ends(self) -> None:
        without_answer = (FaultKind.NO_ANSWER, FaultKind.TOO_LARGE)
        for kind in FaultKind:
            if kind in without_answer:
                continue
            with self.subTest(kind):
                endpoint = self.ELSEWHERE.get(kind, "state")
                honest = self.answer(endpoint)
                self.a.faults.append(ServerFault(endpoint, kind, times=1))
                self.assertNotEqual(self.answer(endpoint)[:20_000], honest[:20_000])
                self.a.faults.clear()

    def test_bad_events_fail_the_checks_on_receipt(self) -> None:
        for kind, verdict in (
            (FaultKind.UNSIGNED, "drop"),
            (FaultKind.WRONGLY_SIGNED, "drop"),
            (FaultKind.WRONG_HASH, "accept redacted"),
        ):
            self.a.faults.append(ServerFault("state", kind, times=1))
            found = orjson.loads(self.answer("state")[1:])
            for pdu in found["pdus"]:
                checked = check_on_receipt(
                    orjson.dumps(pdu), self.room.version, self.federation.keys
                )
                self.assertEqual(checked.verdict, verdict)
            self.a.faults.clear()

    def test_a_contradictory_state_has_a_key_twice(self) -> None:
        self.a.faults.append(ServerFault("state", FaultKind.CONTRADICTORY))
        found = orjson.loads(self.answer("state")[1:])
        keys = [(pdu["type"], pdu["state_key"]) for pdu in found["pdus"]]
        self.assertEqual(len(keys), len(set(keys)) + 1)

    def test_events_in_a_cycle_cite_one_another(self) -> None:
        self.a.faults.append(ServerFault("state", FaultKind.CYCLE))
        found = orjson.loads(self.answer("state")[1:])
        events = {
            each.event_id: each
            for pdu in found["pdus"]
            for each in [parse_event(orjson.dumps(pdu), self.room.version)]
        }
        one, other = events["$one:a"], events["$two:a"]
        self.assertEqual(one.auth_event_ids, (other.event_id,))
        self.assertEqual(other.auth_event_ids, (one.event_id,))

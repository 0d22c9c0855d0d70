"""What happens in a room while its completion is held up, under the clock of the simulator; then it is completed.

Every test ends with the room compared with what it would be if it had never been partial.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Any
from unittest import TestCase
from urllib.parse import quote

import orjson

from simulator.federation.faults import FaultKind, ServerFault
from simulator.federation.hosted_room import HostedRoom
from simulator.federation.joins_checker import UNDER_WAY, JoinsChecker, rows_left
from simulator.federation.joins_world import ALICE, JoinsWorld
from simulator.federation.outgoing import AnsweredWithError
from simulator.federation.own_server import OwnServer
from simulator.rooms.interruptions import RandomInterruptions
from synrepl.core.errors import SynreplError
from synrepl.rooms import Event, EventDraft, server_of
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.federation.joining.errors import RefusedByServers
from synrepl.services.federation.joining.join import JoinedRoomResult
from synrepl.services.rooms.store import RoomStore
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.tables import ensure_tables
from synrepl.streams.synapse.device_lists import DEVICE_LISTS

HERE, US, THEM = "here", "@us:here", "@them:here"
#: A member of the room, and one who comes later; both of servers that nobody registered.
MEMBER, DEREK = "@u2:c", "@derek:x"

REJECTED, PARTIAL = int(EventFlags.REJECTED), int(EventFlags.PARTIAL)


class HeldUpRooms(TestCase):
    """A room of servers ``a`` and ``b``, which a user of ours has joined partially; its completion waits."""

    def setUp(self) -> None:
        random = Random(7)
        quiet = RandomInterruptions(random, 0.0)
        self.world = JoinsWorld(random, ["a", "b"], {HERE: 1}, ["10"], 8, quiet)
        self.addCleanup(self.world.close)
        self.here: OwnServer = self.world.own[HERE]
        self.a, self.b = self.world.pure["a"], self.world.pure["b"]
        (self.room_id,) = self.world.rooms
        self.room: HostedRoom = self.world.rooms[self.room_id]

    # -- steps ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Join, and let the completion wait."""
        for server in (self.a, self.b):
            server.faults = [ServerFault("state_ids", FaultKind.NOT_FOUND, None, ["a", "b"])]
        self.assertTrue(self.joined(US).is_partial)
        self.world.run(3.0)
        self.here.sql("UPDATE synrepl._resync_jobs SET next_try = 'infinity' RETURNING 1")
        for server in (self.a, self.b):
            server.faults = []

    def asked(self, user: str) -> Any:
        """What a user hears who asks to join."""
        results: list[Any] = []
        self.world.join(self.here, self.room_id, user, ["a"], results.append)
        self.assertTrue(self.world.until(lambda: bool(results), 60.0), self.world.violations.found)
        return results[0]

    def joined(self, user: str) -> JoinedRoomResult:
        result = self.asked(user)
        assert isinstance(result, JoinedRoomResult), result
        return result

    def send(self, kind: str, user: str, content: Mapping[str, Any], key: str | None = None) -> str:
        """A user of ours sends an event, of which the others hear."""
        results: list[Any] = []
        self.world.send(self.here, self.room_id, kind, user, content, key, results.append)
        self.assertTrue(self.world.until(lambda: bool(results), 10.0))
        event_id = results[0]
        assert isinstance(event_id, str), event_id
        heard = self.world.until(lambda: event_id in self.room, 60.0)
        self.assertTrue(heard, "nobody hears of it")
        return event_id

    def says(
        self, kind: str, user: str, content: Mapping[str, Any], key: str | None = None
    ) -> Event:
        """A user of another server sends an event, which comes."""
        event = self.a.send(self.room_id, kind, user, content, key)
        self.come(event)
        return event

    def come(self, event: Event) -> None:
        self.assertTrue(self.world.until(lambda: self.flags(event) is not None, 30.0))

    def unheard(self, count: int, kind: str = "m.room.message", sender: str = ALICE) -> list[Event]:
        """Events of which nobody else hears."""
        self.a.outgoing.is_eager = False
        keys = [None if kind == "m.room.message" else str(number) for number in range(count)]
        made = [self.a.send(self.room_id, kind, sender, {"n": key}, key) for key in keys]
        self.a.outgoing.queues.clear()
        self.a.outgoing.is_eager = True
        return made

    def transact(self, *events: Event) -> None:
        """Server ``a`` sends some events."""
        for at in range(0, len(events), 50):
            pdus = [each.raw for each in events[at : at + 50]]
            self.world.finish(self.a.outgoing.transact(HERE, pdus))

    def forged(
        self,
        sender: str,
        kind: str,
        content: Mapping[str, Any],
        key: str | None,
        cites: Sequence[Event],
        follows: Collection[str] = (),
        redacts: str | None = None,
    ) -> Event:
        """An event that cites what its sender likes; only our server gets it."""
        builder = self.a.builder(self.room.version.name, server_of(sender))
        draft = EventDraft(kind, sender, content, self.a.now_ms(), key, redacts)
        parents = follows or self.room.room.forward_extremities
        prevs = [self.room.event(each) for each in sorted(parents)]
        event = builder.assemble(draft, self.room_id, prevs, list(cites))
        self.room.room.receive(event)
        self.transact(event)
        self.come(event)
        return event

    def complete(self) -> None:
        """Let the room be completed, and compare it."""
        self.release()
        self.assertEqual([*JoinsChecker(self.world).faults()], [])
        self.assertEqual(self.world.violations.found, [])

    def release(self) -> None:
        """Let the room be completed."""
        self.here.sql("UPDATE synrepl._resync_jobs SET next_try = to_timestamp(0) RETURNING 1")
        for server in (self.a, self.b):
            self.world.finish(server.outgoing.send_all())
        for process in self.here.processes.values():
            process.worker.wake()
        is_done = self.world.until(lambda: not rows_left(self.here, *UNDER_WAY), 300.0, 1.0)
        self.assertTrue(is_done, (rows_left(self.here, *UNDER_WAY), self.world.violations.found))

    # -- what came of it --------------------------------------------------------------------

    def flags(self, event: Event | str) -> int | None:
        """The flags of an event; None if it is not here with its state."""
        found = self.here.sql(
            "SELECT flags FROM synrepl._room_events WHERE event_id = %s AND stream_id IS NOT NULL",
            event if isinstance(event, str) else event.event_id,
        )
        return None if not found else int(found[0][0])

    def is_rejected(self, event: Event) -> bool:
        flags = self.flags(event)
        assert flags is not None
        return bool(flags & REJECTED)

    def membership(self, user: str) -> str | None:
        found = self.here.sql(
            "SELECT membership FROM synrepl._memberships m JOIN synrepl._rooms r USING (room_no)"
            " WHERE r.room_id = %s AND user_id = %s",
            self.room_id,
            user,
        )
        return str(found[0][0]) if found else None

    def is_partial(self) -> bool:
        return bool(rows_left(self.here, "_partial_rooms"))

    def refused(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> int:
        """The status with which our server refuses a request of server ``b``."""
        raw = None if content is None else orjson.dumps(content)
        query = [("ver", "10")]
        with self.assertRaises(AnsweredWithError) as caught:
            self.world.finish(self.b.outgoing.ask(method, HERE, path, query, raw))
        return int(str(caught.exception.facts["status"]))


class EventsOfOthers(HeldUpRooms):
    """Events that come, whole or with gaps."""

    def test_messages_come_in_both_directions(self) -> None:
        self.begin()
        event = self.says("m.room.message", MEMBER, {"body": "hi"})
        self.assertEqual(self.flags(event), PARTIAL)
        self.send("m.room.message", US, {"body": "hello"})
        self.complete()

    def test_a_missing_parent_is_fetched(self) -> None:
        self.begin()
        first, second = self.unheard(2)
        self.transact(second)
        self.come(second)
        self.assertIsNotNone(self.flags(first))
        self.complete()

    def test_one_of_two_parents_is_missing(self) -> None:
        self.begin()
        join = next(iter(self.room.room.forward_extremities))
        (first,) = self.unheard(1)
        self.a.outgoing.is_eager = False
        second = self.a.send(
            self.room_id,
            "m.room.message",
            ALICE,
            {"body": "both"},
            follows=[join, first.event_id],
        )
        self.transact(second)
        self.come(second)
        self.assertIsNotNone(self.flags(first))
        self.complete()

    def test_a_grandparent_is_missing_that_is_given_only_as_a_state(self) -> None:
        self.begin()
        self.unheard(1)
        follows = [*self.room.room.forward_extremities]
        (second, third) = self.unheard(2)
        self.assertEqual(list(second.prev_event_ids), follows)
        self.a.faults = [
            ServerFault("get_missing_events", FaultKind.EMPTY, None, ["a", "b"]),
            ServerFault("event", FaultKind.NOT_FOUND, None, ["a", "b"]),
        ]
        self.transact(third)
        self.come(third)
        self.a.faults = []
        self.complete()

    def test_many_events_come_first_as_a_state_and_then_one_by_one(self) -> None:
        self.begin()
        (late,) = self.unheard(1)
        states = self.unheard(60, "org.example.entry")
        self.unheard(1)
        (last,) = self.unheard(1)
        self.a.faults = [ServerFault("get_missing_events", FaultKind.EMPTY, None, ["a", "b"])]
        self.transact(last)
        self.come(last)
        self.a.faults = []
        self.assertIsNone(self.flags(states[0]))  # an outlier
        self.transact(late, *states)
        for each in states:
            self.come(each)
        self.complete()


class ForgedEvents(HeldUpRooms):
    """A room that Derek, who may do anything, has left before the join; that he has is not known here."""

    def setUp(self) -> None:
        super().setUp()
        users = {ALICE: 100, DEREK: 100, "@elsie:x": 50}
        self.a.send(self.room_id, "m.room.power_levels", ALICE, {"users": users}, "")
        self.memberships: dict[str, Event] = {}
        for user, membership in ((DEREK, "join"), ("@elsie:x", "join")):
            content = {"membership": membership}
            event = self.a.send(self.room_id, "m.room.member", user, content, user)
            self.memberships[user] = event
        self.a.send(self.room_id, "m.room.member", DEREK, {"membership": "leave"}, DEREK)

    def cited(self, *users: str) -> list[Event]:
        """Events that an event cites, with the older memberships of some users."""
        keys = (("m.room.create", ""), ("m.room.power_levels", ""))
        found = [self.room.current(key) for key in keys]
        return [e for e in found if e is not None] + [self.memberships[each] for each in users]


class WrongVerdicts(ForgedEvents):
    """Events that are judged by what is known, and again by all."""

    def test_what_is_rejected_stays_rejected(self) -> None:
        self.begin()
        event = self.says("org.example.state", MEMBER, {}, "")  # who may not
        self.assertTrue(self.is_rejected(event))
        self.says("m.room.message", ALICE, {"body": "after it"})
        self.complete()
        self.assertTrue(self.is_rejected(event))

    def test_what_was_accepted_wrongly_is_withdrawn(self) -> None:
        self.begin()
        event = self.forged(DEREK, "org.example.state", {}, "", self.cited(DEREK))
        self.assertFalse(self.is_rejected(event))  # that Derek has left is not known
        self.says("m.room.message", ALICE, {"body": "after it"})
        self.complete()
        self.assertTrue(self.is_rejected(event))

    def test_what_was_rejected_wrongly_appears(self) -> None:
        self.begin()
        elsie = "@elsie:x"
        content = {"membership": "leave"}
        kick = self.forged(DEREK, "m.room.member", content, elsie, self.cited(DEREK, elsie))
        cited = self.cited(elsie)
        state = self.forged(elsie, "org.example.state", {}, "", cited, [kick.event_id])
        self.assertEqual((self.is_rejected(kick), self.is_rejected(state)), (False, True))
        self.assertEqual(self.membership(elsie), "leave")
        self.complete()
        self.assertEqual((self.is_rejected(kick), self.is_rejected(state)), (True, False))
        self.assertEqual(self.membership(elsie), "join")


class WrongRedactions(ForgedEvents):
    """Redactions that apply by what is known, and do not by all."""

    def is_redacted(self, event: Event) -> bool:
        found = self.here.sql(
            "SELECT redacted_by FROM synrepl._room_events WHERE event_id = %s", event.event_id
        )
        return found[0][0] is not None

    def test_what_was_redacted_wrongly_is_shown_again(self) -> None:
        self.begin()
        event = self.says("m.room.message", ALICE, {"body": "hi"})
        cited = self.cited(DEREK)
        self.forged(DEREK, "m.room.redaction", {}, None, cited, [event.event_id], event.event_id)
        self.assertTrue(self.is_redacted(event))
        self.complete()
        self.assertFalse(self.is_redacted(event))


class ChangedDevices(ForgedEvents):
    """Servers that are told of changed devices only when the room is complete."""

    LATE, SERVER = "@late:w", "w"

    def removed(self) -> None:
        """A server joins, seems to be removed, and misses that devices of a user of ours change."""
        self.here.database.operator.run("tables", lambda txn: ensure_tables(txn, [DEVICE_LISTS]))
        self.begin()
        join = self.says("m.room.member", self.LATE, {"membership": "join"}, self.LATE)
        self.memberships[self.LATE] = join
        cited, content = self.cited(DEREK, self.LATE), {"membership": "leave"}
        self.forged(DEREK, "m.room.member", content, self.LATE, cited)
        self.here.sql(
            "INSERT INTO synrepl.device_lists"
            " (stream_id, row_no, writer, entity, is_signature, hosts_calculated)"
            " VALUES (3, 0, 'x', %s, false, false) RETURNING 1",
            US,
        )

    def told(self) -> list[tuple[str, str]]:
        return self.here.sql("SELECT destination, user_id FROM synrepl._device_list_pokes")

    def test_a_server_that_was_removed_wrongly_is_told(self) -> None:
        self.removed()
        self.complete()
        self.assertEqual(self.told(), [(self.SERVER, US)])

    def test_one_that_has_left_since_is_told_if_it_shares_another_room(self) -> None:
        self.removed()
        self.says("m.room.member", self.LATE, {"membership": "leave"}, self.LATE)
        local = "room_id LIKE '!local%%'"
        self.here.sql(
            "INSERT INTO synrepl._memberships (room_no, user_id, event_no, membership, stream_id)"
            f" SELECT room_no, %s, event_no, 'join', stream_id FROM synrepl._memberships"
            f" JOIN synrepl._rooms USING (room_no) WHERE {local} AND user_id = %s RETURNING 1",
            self.LATE,
            US,
        )
        self.release()
        self.assertEqual(self.told(), [(self.SERVER, US)])

    def test_one_that_has_left_since_is_not_told_otherwise(self) -> None:
        self.removed()
        self.says("m.room.member", self.LATE, {"membership": "leave"}, self.LATE)
        self.complete()
        self.assertEqual(self.told(), [])


class OwnUsers(HeldUpRooms):
    """What users of ours do."""

    def test_a_user_changes_its_name(self) -> None:
        self.begin()
        content = {"membership": "join", "displayname": "us 2"}
        event_id = self.send("m.room.member", US, content, US)
        self.assertEqual(self.membership(US), "join")
        self.assertEqual(self.room.event(event_id).content["displayname"], "us 2")
        self.complete()

    def test_who_leaves_does_not_wait_and_may_come_back(self) -> None:
        self.begin()
        self.send("m.room.member", US, {"membership": "leave"}, US)
        self.assertEqual(self.membership(US), "leave")
        self.assertTrue(self.world.until(lambda: not self.is_partial(), 30.0))
        self.assertTrue(self.joined(US).is_partial)
        self.complete()

    def test_another_user_joins_a_room_that_the_first_one_left(self) -> None:
        self.begin()
        self.send("m.room.member", US, {"membership": "leave"}, US)
        self.assertTrue(self.joined(THEM).is_partial)
        self.complete()
        self.assertEqual((self.membership(US), self.membership(THEM)), ("leave", "join"))

    def test_the_first_user_leaves_after_a_second_one_has_joined(self) -> None:
        self.begin()
        self.assertTrue(self.joined(THEM).is_partial)
        self.send("m.room.member", US, {"membership": "leave"}, US)
        self.assertTrue(self.is_partial())
        self.complete()
        self.assertEqual((self.membership(US), self.membership(THEM)), ("leave", "join"))

    def test_who_is_banned_is_out_at_once_and_is_not_let_in_again(self) -> None:
        self.begin()
        self.says("m.room.member", ALICE, {"membership": "ban"}, US)
        self.assertEqual(self.membership(US), "ban")
        self.assertIsInstance(self.asked(US), RefusedByServers)

    def test_aliases_are_added_found_and_removed(self) -> None:
        self.begin()
        (process,) = self.here.ready
        aliases, me, alias = process.aliases, ClientIdentity(US, "D"), f"#alias:{HERE}"
        self.world.finish(aliases.add(me, alias, self.room_id), process.process)
        room_id, servers = self.world.finish(aliases.room_with_servers(alias), process.process)
        self.assertEqual(room_id, self.room_id)
        self.assertLessEqual({"a", "b", HERE}, set(servers))
        self.world.finish(aliases.remove(me, alias), process.process)
        with self.assertRaises(SynreplError):
            self.world.finish(aliases.room_of(alias), process.process)
        self.complete()

    def test_the_number_of_members_is_right_in_the_end(self) -> None:
        self.begin()
        (process,) = self.here.ready
        store = RoomStore(process.database)

        def joined() -> int:
            figures = self.world.finish(store.room(self.room_id), process.process)
            return int(figures.joined)

        self.assertEqual(joined(), 1)
        self.complete()
        self.assertEqual(joined(), len([*self.members()]))

    def members(self) -> Collection[str]:
        return [e.event_id for e in self.room.current_state() if e.membership == "join"]


class AnswersToOthers(HeldUpRooms):
    """What other servers ask of a room that is partial here."""

    def test_nobody_joins_or_knocks_by_a_server_that_is_joining_itself(self) -> None:
        self.begin()
        room, user = quote(self.room_id, safe=""), quote("@new:b", safe="")
        for name in ("join", "knock"):
            path = f"/_matrix/federation/v1/make_{name}/{room}/{user}"
            self.assertEqual(self.refused("GET", path), 404, name)
            content = {"membership": name}
            builder = self.b.builder("10")
            draft = EventDraft("m.room.member", "@new:b", content, self.b.now_ms(), "@new:b")
            event = builder.build(draft, self.b.rooms[self.room_id].room)
            version = 2 if name == "join" else 1
            path = f"/_matrix/federation/v{version}/send_{name}/{room}/{quote(event.event_id)}"
            self.assertEqual(self.refused("PUT", path, event.fields), 404, name)
        self.complete()

    def test_another_server_is_asked_where_one_answers_nonsense(self) -> None:
        self.begin()
        self.a.faults = [ServerFault("state_ids", FaultKind.NO_OBJECT, None, ["b"])]
        self.complete()
        asked = dict(self.here.sql("SELECT destination, code FROM synrepl._resync_attempts"))
        self.assertEqual((asked["a"], asked["b"]), ("bad-answer", "ok"))

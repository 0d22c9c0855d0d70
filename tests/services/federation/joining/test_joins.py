"""Users of ours join rooms of other servers, which help, refuse, lie or are away."""

from __future__ import annotations

from typing import Any

from simulator.federation.faults import FaultKind, ServerFault
from simulator.federation.hosted_room import HostedRoom
from synrepl.services.federation.joining import join, running_joins
from synrepl.services.federation.joining.candidates import candidates
from synrepl.services.federation.joining.errors import (
    JoinGoesOn,
    NoServerToAsk,
    RefusedByServers,
    RoomNotAtServers,
    RoomVersionNotSpoken,
    ServersDidNotHelp,
    TooManyJoins,
)
from synrepl.services.federation.joining.join import JoinRequest
from synrepl.storage.federation.membership_facts import MembershipFacts
from tests.services.federation.joining.joining_case import THEM, JoiningCase
from tests.services.federation.joining_server import US
from tests.services.federation.resync.resync_case import ALICE, BOB


class Joins(JoiningCase):
    """Rooms that are joined."""

    async def test_are_partial_at_once_and_complete_later(self) -> None:
        room = self.made_room(members=20)
        done = await self.enter(room, "a", reason="curious")
        self.assertTrue(done.is_partial)
        self.assertEqual(self.membership(room), "join")
        joined = room.current(("m.room.member", US))
        assert joined is not None
        assert done.sent is not None
        self.assertEqual(joined.event_id, done.sent.event_id)
        self.assertEqual(joined.content, {"membership": "join", "reason": "curious"})
        await self.here.complete()
        await self.check_complete(room)

    async def test_are_whole_where_the_server_leaves_out_no_members(self) -> None:
        for version in ("1", "12"):
            room = self.made_room(version, members=20)
            self.a.faults.append(ServerFault("send_join", FaultKind.NO_SERVERS, times=1))
            done = await self.enter(room, "a")
            self.assertFalse(done.is_partial)
            self.assertFalse(self.is_partial())
            whole = await self.whole_room(room)
            await self.check_equal(whole, version, orders=False)
            await self.empty()
            self.a.rooms.clear()

    async def test_are_whole_where_that_is_wanted(self) -> None:
        room = self.made_room(members=20)
        done = await self.running.join(JoinRequest(room.room_id, US, {}, ["a"], whole=True))
        self.assertFalse(done.is_partial)
        self.assertFalse(self.is_partial())
        self.assertEqual(len(self.federation.asked("send_join")), 1)
        await self.check_equal(await self.whole_room(room), orders=False)

    async def test_are_left_alone_where_the_user_is_in_them(self) -> None:
        room = self.made_room()
        await self.enter(room, "a")
        asked = len(self.federation.requests)
        done = await self.enter(room, "a")
        self.assertIsNone(done.sent)
        self.assertTrue(done.is_partial)
        self.assertEqual(len(self.federation.requests), asked)

    async def test_are_joined_once_by_a_user_who_asks_twice(self) -> None:
        room = self.made_room()
        both = [self.deferred(self.enter(room, "a")) for _ in range(2)]
        one, other = [await each for each in both]
        self.assertEqual(one, other)
        self.assertEqual(len(self.federation.asked("send_join")), 1)

    async def test_are_asked_about_at_the_next_server_that_is_named(self) -> None:
        room = await self.shared_room()
        for kind in (
            *(FaultKind.FORBIDDEN, FaultKind.NOT_FOUND, FaultKind.BROKEN, FaultKind.NO_ANSWER),
            *(FaultKind.GARBAGE, FaultKind.NO_OBJECT, FaultKind.NESTED, FaultKind.TOO_LARGE),
            *(FaultKind.TRUNCATED, FaultKind.MANY_PARENTS),
        ):
            self.b.faults = [ServerFault("make_join", kind)]
            done = await self.enter(room, "b", "a")
            self.assertIsNotNone(done.sent, kind)
            self.assertEqual(self.sql("SELECT joined_via FROM synrepl._partial_rooms"), "a", kind)
            await self.empty()

    async def test_need_an_answer_that_can_be_used(self) -> None:
        room = await self.shared_room()
        for membership in ("join", "leave"):
            content = {"membership": membership}
            self.b.send(room.room_id, "m.room.member", "@z:c", content, "@z:c")
        self.b.create_room("10", BOB, name="other")
        self.federation.stop("a")
        for kind in (
            *(FaultKind.NO_CREATE, FaultKind.NO_POWER_LEVELS, FaultKind.NO_JOIN_RULES),
            *(FaultKind.NO_AUTH_CHAIN, FaultKind.EMPTY, FaultKind.UNSIGNED),
            *(FaultKind.WRONGLY_SIGNED, FaultKind.OTHER_ROOM, FaultKind.HALF_THE_EVENTS),
            *(FaultKind.TRUNCATED, FaultKind.GARBAGE, FaultKind.NESTED, FaultKind.TOO_LARGE),
            *(FaultKind.NO_ANSWER, FaultKind.MANY_SERVERS, FaultKind.NO_OBJECT),
        ):
            self.b.faults = [ServerFault("send_join", kind)]
            with self.assertRaisesRegex(ServersDidNotHelp, "b: ", msg=kind):
                await self.enter(room, "b")
            self.check_nothing_is_left(kind)

    async def test_go_on_where_one_server_lies(self) -> None:
        room = await self.shared_room()
        self.b.faults = [ServerFault("send_join", FaultKind.NO_POWER_LEVELS)]
        done = await self.enter(room, "b", "a")
        self.assertTrue(done.is_partial)
        await self.here.complete()

    async def test_fall_back_to_the_whole_state(self) -> None:
        room = self.made_room()
        self.a.faults = [ServerFault("send_join", FaultKind.NO_POWER_LEVELS, times=1)]
        done = await self.enter(room, "a")
        self.assertFalse(done.is_partial)
        self.assertEqual(len(self.federation.asked("send_join")), 2)


class RefusedJoins(JoiningCase):
    """Joins that fail, and why."""

    async def test_say_that_no_server_is_known(self) -> None:
        room = self.made_room("12")
        with self.assertRaisesRegex(NoServerToAsk, "via"):
            await self.enter(room)

    async def test_ask_the_server_in_the_room_id(self) -> None:
        done = await self.enter(self.made_room())
        self.assertTrue(done.is_partial)

    async def test_say_what_came_of_each_server(self) -> None:
        room = await self.shared_room()
        self.a.faults = [ServerFault("*", FaultKind.FORBIDDEN)]
        self.federation.stop("b")
        with self.assertRaises(RefusedByServers) as raised:
            await self.enter(room, "b", "a", "c", "nobody", "here", "no name")
        text = str(raised.exception)
        self.assertRegex(text, "b: it does not answer; a: 403 M_FORBIDDEN: .*; c: 404 M_NOT_FOUND")
        self.assertNotIn("no name", text)
        self.assertNotIn("here:", text)
        self.check_nothing_is_left()

    async def test_say_that_the_room_is_not_there(self) -> None:
        room = self.made_room()
        with self.assertRaises(RoomNotAtServers):
            await self.running.join(JoinRequest("!no:a", US, {}, ["b", "c"]))
        self.federation.stop("a")
        with self.assertRaises(ServersDidNotHelp):
            await self.enter(room, "a")

    async def test_say_that_the_version_is_not_known(self) -> None:
        room = self.made_room()
        self.patch(self.maker.__class__, "versions", property(lambda _: ["1"]))
        with self.assertRaisesRegex(RoomVersionNotSpoken, "version 10"):
            await self.enter(room, "a")

    async def test_are_told_to_who_waits_before_a_minute_is_over(self) -> None:
        room = self.made_room()
        self.a.faults = [ServerFault("make_join", FaultKind.NO_ANSWER)]
        with self.assertRaisesRegex(JoinGoesOn, "asking"):
            await self.running.join(JoinRequest(room.room_id, US, {}, ["a"]), 0.05)
        state = await self.running.follow(JoinRequest(room.room_id, US, {}, ["a"]), 0.0)
        self.assertIsNone(state.joined)
        self.assertEqual((state.progress["phase"], state.progress["server"]), ("asking", "a"))
        self.assertEqual(
            [each["room_id"] for each in self.running.status()["running"]], [room.room_id]
        )
        for _ in range(2):
            with self.assertRaises(ServersDidNotHelp):
                await self.running.follow(JoinRequest(room.room_id, US, {}, ["a"]), 5.0, state.run)
        self.assertEqual(
            self.running.status(), {"running": [], "outcomes": {"ServersDidNotHelp": 1}}
        )

    async def test_of_a_room_whose_server_names_another_version_are_refused(self) -> None:
        room = self.made_room("10")
        send = self.here.client.make_membership

        async def lies(*given: Any, **more: Any) -> Any:
            return (await send(*given, **more))._replace(room_version="9")

        self.patch(self.here.client, "make_membership", lies)
        # The hash of an event is the same in both versions.
        with self.assertRaisesRegex(ServersDidNotHelp, "a says version 9, and the room has 10"):
            await self.enter(room, "a")
        self.check_nothing_is_left()

    async def test_ask_no_further_server_when_time_is_over(self) -> None:
        room = await self.shared_room()
        self.patch(join, "ASK_S", 0.2)
        self.federation.patience_s = None
        self.a.faults = [ServerFault("make_join", FaultKind.NO_ANSWER)]
        with self.assertRaisesRegex(
            ServersDidNotHelp, "a: it does not answer; b: it was not asked"
        ):
            await self.enter(room, "a", "b")
        self.assertEqual(self.federation.asked("make_join", "b"), [])

    async def test_of_one_user_are_bounded(self) -> None:
        self.patch(running_joins, "MAX_OF_USER", 1)
        one, other = (self.a.create_room("10", ALICE, name=each) for each in ("one", "other"))
        self.a.faults = [ServerFault("make_join", FaultKind.NO_ANSWER)]
        await self.running.follow(JoinRequest(one.room_id, US, {}, ["a"]), 0.0)
        with self.assertRaisesRegex(TooManyJoins, "1 of them by this user"):
            await self.enter(other, "a")
        await self.running.follow(JoinRequest(other.room_id, THEM, {}, ["a"]), 0.0)
        while self.running.status()["running"]:
            await self.one.process.scheduler.sleep(0.05)

    async def test_are_asked_for_in_the_order_that_promises_most(self) -> None:
        room = self.a.create_room("10", ALICE, join_rule="invite")
        content = {"membership": "invite"}
        event = self.a.send(room.room_id, "m.room.member", "@x:c", content, US)
        facts = MembershipFacts(
            "10", True, True, "invite", event, ["shown"], False, "via", ["known", "a"]
        )
        servers = candidates(room.room_id, ["named", "no name", "here"], ["alias"], facts, "here")
        self.assertEqual(servers, ["c", "named", "alias", "via", "shown", "a", "known"])
        many = candidates(room.room_id, [f"s{each}" for each in range(99)], [], facts, "here")
        self.assertEqual(len(many), 10)


class FurtherJoins(JoiningCase):
    """Other users of ours join a room, too."""

    async def test_of_a_partial_room_are_a_handshake_each(self) -> None:
        room = self.made_room()
        await self.enter(room, "a")
        done = await self.enter(room, user=THEM)
        self.assertTrue(done.is_partial)
        self.assertEqual(len(self.federation.asked("send_join", "a")), 2)
        self.assertEqual(self.membership(room, THEM), "join")
        await self.here.complete()
        await self.check_complete(room)

    async def test_of_a_whole_room_are_made_here(self) -> None:
        room = self.made_room()
        await self.enter(room, "a")
        await self.here.complete()
        done = await self.enter(room, "a", user=THEM)
        self.assertFalse(done.is_partial)
        self.assertEqual(len(self.federation.asked("send_join")), 1)

    async def test_wait_for_the_first_one(self) -> None:
        room = self.made_room()
        self.a.faults = [ServerFault("send_join", FaultKind.NO_POWER_LEVELS, times=1)]
        both = [self.deferred(self.enter(room, "a", user=each)) for each in (US, THEM)]
        one, other = [await each for each in both]
        self.assertFalse(one.is_partial or other.is_partial)
        assert other.sent is not None
        self.assertEqual(len(self.federation.asked("make_join")), 1)

    async def test_of_a_user_who_is_banned_are_refused(self) -> None:
        room = self.made_room()
        await self.enter(room, "a")
        self.a.send(room.room_id, "m.room.member", ALICE, {"membership": "ban"}, THEM)
        with self.assertRaises(RefusedByServers):
            await self.enter(room, user=THEM)
        self.assertEqual(
            self.sql("SELECT count(*) FROM synrepl._memberships WHERE user_id = %s", THEM), 0
        )


class RestrictedJoins(JoiningCase):
    """Rooms whose members must be members of another room."""

    def restricted(self, *allowed: HostedRoom) -> HostedRoom:
        room = self.a.create_room("10", ALICE, name="restricted")
        allow = [{"type": "m.room_membership", "room_id": each.room_id} for each in allowed]
        rules = {"join_rule": "restricted", "allow": allow}
        self.a.send(room.room_id, "m.room.join_rules", ALICE, rules, "")
        return room

    async def test_are_signed_by_the_server_that_authorises_them(self) -> None:
        club = self.made_room()
        room = self.restricted(club)
        await self.enter(club, "a")
        done = await self.enter(room, "a")
        self.assertTrue(done.is_partial)
        event = room.current(("m.room.member", US))
        assert event is not None
        self.assertEqual(event.content["join_authorised_via_users_server"], ALICE)
        self.assertEqual(set(event.signatures), {"a", "here"})

    async def test_are_made_by_another_server_if_the_first_cannot_tell(self) -> None:
        club = self.made_room()
        room = self.restricted(club)
        levels = {"users": {ALICE: 100, BOB: 100}}
        self.a.send(room.room_id, "m.room.power_levels", ALICE, levels, "")
        self.a.send(room.room_id, "m.room.member", ALICE, {"membership": "invite"}, BOB)
        await self.b.join(room.room_id, BOB, "a")
        await self.enter(club, "a")
        done = await self.enter(room, "b", "a")
        self.assertTrue(done.is_partial)
        self.assertEqual(
            self.sql(
                "SELECT joined_via FROM synrepl._partial_rooms p JOIN synrepl._rooms r USING (room_no) WHERE r.room_id = %s",
                room.room_id,
            ),
            "a",
        )

    async def test_are_sent_to_the_server_whose_user_authorises_them(self) -> None:
        club = self.made_room()
        room = self.restricted(club)
        await self.enter(club, "a")
        make = self.here.client.make_membership

        async def names_another(destination: str, *given: Any) -> Any:
            return await make("a", *given)

        self.patch(self.here.client, "make_membership", names_another)
        await self.enter(room, "b")
        self.assertEqual(len(self.federation.asked("send_join", "a")), 2)
        self.assertEqual(self.federation.asked("send_join", "b"), [])

    async def test_are_refused_to_who_is_in_none_of_the_rooms(self) -> None:
        room = self.restricted(self.made_room())
        with self.assertRaisesRegex(RefusedByServers, "a: 403"):
            await self.enter(room, "a")

    async def test_need_other_servers_where_ours_may_not_authorise_them(self) -> None:
        club = self.made_room()
        room = self.restricted(club)
        for user in (US, THEM):
            await self.enter(club, "a", user=user)
        await self.enter(room, "a")
        await self.here.complete()
        self.assertFalse(self.is_partial())
        # Nobody of ours may invite now.
        levels = {"users": {ALICE: 100}, "invite": 50}
        event = self.a.send(room.room_id, "m.room.power_levels", ALICE, levels, "")
        await self.receive(event)
        done = await self.enter(room, user=THEM)
        assert done.sent is not None
        self.assertEqual(self.membership(room, THEM), "join")

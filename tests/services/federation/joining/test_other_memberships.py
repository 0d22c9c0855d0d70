"""Users of ours knock, reject invites, and invite users of other servers."""

from __future__ import annotations

import json

from simulator.federation.faults import FaultKind, ServerFault
from simulator.federation.hosted_room import HostedRoom
from synrepl.rooms import NoCanonicalJson
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.federation.inbound.admission import InboundAdmission
from synrepl.services.federation.joining.errors import (
    NoServerToAsk,
    ReasonTooLong,
    RefusedByServers,
    RoomNotAtServers,
    ServersDidNotHelp,
)
from synrepl.services.federation.joining.remote_invites import RemoteInvites
from synrepl.services.federation.joining.user_memberships import RemoteAliases, UserMemberships
from synrepl.services.federation.joining.without_join import MembershipsWithoutJoin
from synrepl.services.federation.resident.arrivals import MembershipArrivals
from synrepl.services.federation.resident.invites import RemoteMemberships
from synrepl.services.federation.resident.room_access import RoomAccess
from synrepl.services.rooms.sending.aliases import RoomAliases
from synrepl.services.rooms.sending.memberships import OwnMemberships
from synrepl.services.rooms.sending.new_room import NewRoom
from synrepl.storage.federation.remote_memberships import RemoteMembership
from synrepl.storage.rooms.persisting.send_run import EventNotAllowed
from synrepl.storage.rooms.tables.aliases import UnknownAlias
from synrepl.storage.rooms.tables.numbers import UnknownRoom
from synrepl.storage.rooms.tables.sent_events import SentEvent
from tests.services.federation.joining.joining_case import THEM, JoiningCase
from tests.services.federation.joining_server import HERE, US
from tests.services.federation.resync.resync_case import ALICE
from tests.services.world import NullLog

WE = ClientIdentity(US, "D")


class MembershipsCase(JoiningCase):
    """What changes memberships besides joins."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        scheduler, key = self.one.process.scheduler, self.federation.keys.signing_key(HERE)
        client, aliases = self.here.client, RoomAliases(self.database, self.sender)
        admission = InboundAdmission(self.database, HERE, ["one"])
        arrivals = MembershipArrivals(
            self.database,
            RoomAccess(self.database, admission),
            self.here.verifier,
            self.one.persister,
            self.forwarder,
            "one",
            HERE,
            key,
        )
        self.stored = RemoteMemberships(
            scheduler, self.writers, self.one.writer, self.forwarder, "one"
        )
        self.memberships = UserMemberships(
            scheduler,
            self.database,
            self.sender,
            self.changes,
            RemoteAliases(OwnMemberships(self.changes, aliases), client, HERE),
            self.running,
            MembershipsWithoutJoin(scheduler, client, self.maker, self.stored, NullLog()),
            RemoteInvites(self.database, client, self.maker, self.sender, arrivals),
            NullLog(),
        )

    async def invited(self, room: HostedRoom, user: str = US) -> None:
        """Alice invites a user of ours, who hears of it."""
        content = {"membership": "invite"}
        event = self.a.send(room.room_id, "m.room.member", ALICE, content, user)
        await self.stored.store(RemoteMembership(event, ()))

    def remote(self, user: str = US) -> str | None:
        """The membership of a user in a room that is not here."""
        statement = "SELECT max(membership) FROM synrepl._remote_memberships WHERE user_id = %s"
        found: str | None = self.sql(statement, user)
        return found


class Knocks(MembershipsCase):
    """Knocks on rooms of other servers."""

    async def test_are_kept_with_what_is_shown_of_the_room(self) -> None:
        room = self.a.create_room("10", ALICE, join_rule="knock")
        changed = await self.memberships.knock(WE, room.room_id, ["a"], {"reason": "please"})
        event = room.current(("m.room.member", US))
        assert event is not None
        self.assertEqual(changed, (room.room_id, SentEvent(event.event_id, None, None)))
        self.assertEqual(event.content, {"membership": "knock", "reason": "please"})
        self.assertEqual(self.remote(), "knock")
        (shown,) = [self.sql("SELECT stripped_state FROM synrepl._remote_memberships")]
        kinds = {each["type"] for each in json.loads(bytes(shown))}
        self.assertEqual(kinds, {"m.room.create", "m.room.join_rules"})

    async def test_are_taken_back_at_a_server_that_was_shown(self) -> None:
        room = self.a.create_room("12", ALICE, join_rule="knock")
        await self.memberships.knock(WE, room.room_id, ["a"], {})
        await self.memberships.leave(WE, room.room_id, {"reason": "no"})
        event = room.current(("m.room.member", US))
        assert event is not None
        self.assertEqual(event.content, {"membership": "leave", "reason": "no"})
        self.assertEqual(self.remote(), "leave")

    async def test_say_why_they_are_refused(self) -> None:
        room = self.made_room()
        with self.assertRaisesRegex(RefusedByServers, "a: 403"):
            await self.memberships.knock(WE, room.room_id, ["a"], {})
        with self.assertRaises(RoomNotAtServers):
            await self.memberships.knock(WE, "!no:b", ["b"], {})
        with self.assertRaises(NoServerToAsk):
            await self.memberships.knock(WE, self.made_room("12").room_id, [], {})
        self.assertIsNone(self.remote())


class Invites(MembershipsCase):
    """Invites to rooms of other servers, and of their users."""

    async def test_are_rejected_at_the_server_that_sent_them(self) -> None:
        for version in ("1", "12"):
            room = self.a.create_room(version, ALICE, name=f"v{version}", join_rule="invite")
            await self.invited(room)
            await self.memberships.leave(WE, room.room_id, {})
            self.assertEqual(self.membership(room), "leave")
            self.assertEqual(self.remote(), "leave")

    async def test_are_rejected_here_if_no_server_takes_it(self) -> None:
        for kind in (FaultKind.NO_ANSWER, FaultKind.FORBIDDEN, FaultKind.GARBAGE):
            room = self.a.create_room("10", ALICE, name=kind.name.lower(), join_rule="invite")
            await self.invited(room)
            self.a.faults = [ServerFault("*", kind)]
            await self.memberships.leave(WE, room.room_id, {})
            self.assertEqual(self.membership(room), "invite")
            self.assertEqual(self.remote(), "leave")

    async def test_of_users_who_have_none_cannot_be_rejected(self) -> None:
        with self.assertRaises(UnknownRoom):
            await self.memberships.leave(WE, "!no:a", {})

    async def test_let_a_user_join_by_the_server_that_sent_them(self) -> None:
        room = self.a.create_room("12", ALICE, join_rule="invite")
        await self.invited(room)
        changed = await self.memberships.join(WE, room.room_id, [], {})
        self.assertIsNotNone(changed.sent)
        self.assertEqual(self.membership(room), "join")

    async def test_into_a_partial_room_are_rejected_at_its_servers(self) -> None:
        room = self.made_room()
        await self.invited(room, THEM)
        await self.enter(room, "a")
        await self.memberships.leave(ClientIdentity(THEM, "D"), room.room_id, {})
        self.assertEqual(self.membership(room, THEM), "leave")

    async def test_of_users_of_other_servers_are_signed_by_these(self) -> None:
        new = NewRoom(preset="private_chat", room_version="10", is_direct=True, invite=[ALICE])
        room_id = (await self.memberships.create(WE, new)).room_id
        (event,) = self.a.invites
        self.assertEqual(event.content, {"membership": "invite", "is_direct": True})
        await self.memberships.invite(WE, room_id, "@bob:b", {"reason": "hi"})
        self.assertEqual(self.b.invites[0].content, {"membership": "invite", "reason": "hi"})
        read = "SELECT array_agg(membership ORDER BY user_id) FROM synrepl._memberships"
        self.assertEqual(self.sql(read), ["invite", "invite", "join"])
        raws = self.sql(
            "SELECT array_agg(convert_from(raw, 'utf-8')) FROM synrepl._room_event_json"
            " JOIN synrepl._room_events USING (event_no) WHERE event_id = %s",
            event.event_id,
        )
        self.assertEqual(set(json.loads(raws[0])["signatures"]), {"a", HERE})

    async def test_that_are_not_taken_leave_nothing(self) -> None:
        room_id = (await self.memberships.create(WE, NewRoom(preset="private_chat"))).room_id
        members = "SELECT count(*) FROM synrepl._memberships"
        for kind, expected in (
            (FaultKind.FORBIDDEN, RefusedByServers),
            (FaultKind.NO_ANSWER, ServersDidNotHelp),
            (FaultKind.GARBAGE, ServersDidNotHelp),
        ):
            self.a.faults = [ServerFault("invite", kind)]
            with self.assertRaises(expected):
                await self.memberships.invite(WE, room_id, ALICE, {})
            self.assertEqual(self.sql(members), 1)
        with self.assertRaises(EventNotAllowed):
            await self.memberships.invite(ClientIdentity(THEM, "D"), room_id, ALICE, {})
        self.assertEqual(len(self.federation.asked("invite")), 3)


class Aliases(MembershipsCase):
    """Aliases of other servers."""

    async def test_name_rooms_that_are_joined_by_their_servers(self) -> None:
        room = await self.shared_room("12")
        self.b.aliases["#there:b"] = room.room_id
        self.federation.stop("a")
        changed = await self.memberships.join(WE, "#there:b", [], {})
        self.assertEqual(changed.room_id, room.room_id)
        self.assertEqual(self.sql("SELECT joined_via FROM synrepl._partial_rooms"), "b")

    async def test_that_are_not_known_are_refused(self) -> None:
        with self.assertRaises(UnknownAlias):
            await self.memberships.join(WE, "#no:a", [], {})
        self.federation.stop("b")
        with self.assertRaisesRegex(ServersDidNotHelp, "b: it does not answer"):
            await self.memberships.join(WE, "#no:b", [], {})
        with self.assertRaises(UnknownAlias):
            await self.memberships.join(WE, "#no:here", [], {})


class BadRequests(MembershipsCase):
    """What no server is asked for."""

    async def test_name_no_room(self) -> None:
        for named in ("", "room", "@alice:a", "!a\0b:a", f"!{'x' * 255}:a", "$event"):
            with self.assertRaises(UnknownRoom, msg=named):
                await self.memberships.join(WE, named, ["a"], {})
        self.assertEqual(self.federation.requests, [])

    async def test_have_too_long_a_reason(self) -> None:
        room, content = self.made_room(), {"reason": "x" * 40_000}
        for work in (
            self.memberships.join(WE, room.room_id, ["a"], content),
            self.memberships.knock(WE, room.room_id, ["a"], content),
            self.memberships.leave(WE, room.room_id, content),
        ):
            with self.assertRaises(ReasonTooLong):
                await work
        with self.assertRaises(NoCanonicalJson):
            await self.memberships.join(WE, room.room_id, ["a"], {"reason": "\ud800"})
        self.assertEqual(self.federation.requests, [])

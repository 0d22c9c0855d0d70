"""Events and rooms of this server's users, in one process and across several."""

from __future__ import annotations

from twisted.internet.defer import Deferred, gatherResults

from synrepl.core.errors import SynreplError
from synrepl.rooms import BadEvent, BadIdentifier, UnknownRoomVersion
from synrepl.services.forwarding import WriterUnreachable
from synrepl.services.rooms.sending.aliases import BadAlias
from synrepl.services.rooms.sending.event_sender import ClientRequestId
from synrepl.services.rooms.sending.new_room import (
    InitialState,
    NewRoom,
    NotForNewRoom,
    TooMuchInNewRoom,
)
from synrepl.storage.rooms.persisting.send_run import EventNotAllowed
from synrepl.storage.rooms.reading.client_rooms import StillInRoom
from synrepl.storage.rooms.tables.aliases import AliasInUse, UnknownAlias
from synrepl.storage.rooms.tables.incoming import NotStorable
from synrepl.storage.rooms.tables.numbers import UnknownRoom
from synrepl.storage.rooms.tables.sent_events import SentEvent
from tests.services.rooms.sending_case import ALICE, BOB, CAROL, SendingServiceCase

VERSIONS = ("6", "10", "11", "12")


class CreatingRooms(SendingServiceCase):
    """Rooms that users create."""

    async def test_a_room_of_each_version_has_its_creator_and_takes_messages(self) -> None:
        for version in VERSIONS:
            room_id = await self.create(room_version=version)
            self.assertEqual(await self.membership(room_id, ALICE.user_id), "join")
            create = await self.content(room_id, "m.room.create")
            assert create is not None
            self.assertEqual(create["room_version"], version)
            await self.say(room_id)

    async def test_presets_decide_who_may_join(self) -> None:
        for preset, rule, access in (
            ("private_chat", "invite", "can_join"),
            ("trusted_private_chat", "invite", "can_join"),
            ("public_chat", "public", "forbidden"),
        ):
            room_id = await self.create(preset=preset)
            self.assertEqual(await self.content(room_id, "m.room.join_rules"), {"join_rule": rule})
            self.assertEqual(
                await self.content(room_id, "m.room.guest_access"), {"guest_access": access}
            )
        room_id = await self.create(visibility="public")
        self.assertEqual(await self.content(room_id, "m.room.join_rules"), {"join_rule": "public"})

    async def test_what_is_chosen_is_in_the_state(self) -> None:
        room_id = await self.create(
            name="N",
            topic="T",
            invite=[BOB.user_id],
            is_direct=True,
            creation_content={"type": "m.space", "creator": "@x:y", "room_version": "1"},
            initial_state=[
                InitialState("m.room.join_rules", {"join_rule": "knock"}),
                InitialState("m.custom", {"a": 1}, "k"),
            ],
            power_level_content_override={"invite": 77},
        )
        self.assertEqual(await self.content(room_id, "m.room.name"), {"name": "N"})
        self.assertEqual(await self.content(room_id, "m.room.topic"), {"topic": "T"})
        self.assertEqual(
            await self.content(room_id, "m.room.member", BOB.user_id),
            {"membership": "invite", "is_direct": True},
        )
        self.assertEqual(
            await self.content(room_id, "m.room.create"), {"type": "m.space", "room_version": "11"}
        )
        self.assertEqual(await self.content(room_id, "m.room.join_rules"), {"join_rule": "knock"})
        self.assertEqual(await self.content(room_id, "m.custom", "k"), {"a": 1})
        levels = await self.content(room_id, "m.room.power_levels")
        assert levels is not None
        self.assertEqual((levels["invite"], levels["users"]), (77, {ALICE.user_id: 100}))

    async def test_trusted_users_get_the_power_of_the_creator(self) -> None:
        for version in ("11", "12"):
            chosen = {"preset": "trusted_private_chat", "invite": [BOB.user_id]}
            room_id = await self.create(room_version=version, **chosen)
            await self.changes.join(BOB, room_id, {})
            sent = (
                await self.sender.send(
                    BOB, room_id, "m.room.power_levels", {"users_default": 0}, state_key=""
                )
                if version == "12"
                else await self.sender.send(
                    BOB, room_id, "m.room.server_acl", {"allow": ["*"]}, state_key=""
                )
            )
            self.assertIsNotNone(sent.stream_id)

    async def test_nothing_is_stored_of_a_room_that_is_refused(self) -> None:
        for error, new in (
            (UnknownRoomVersion, NewRoom(room_version="99")),
            (TooMuchInNewRoom, NewRoom(invite=[f"@u{n}:test" for n in range(101)])),
            (TooMuchInNewRoom, NewRoom(initial_state=[InitialState("a", {})] * 501)),
            (NotForNewRoom, NewRoom(invite_3pid=[{}])),
            (NotForNewRoom, NewRoom(initial_state=[InitialState("m.room.create", {})])),
            (BadIdentifier, NewRoom(invite=["bob"])),
            (BadAlias, NewRoom(room_alias_name="a:b")),
            (EventNotAllowed, NewRoom(power_level_content_override={"users": {}}, name="x")),
            (EventNotAllowed, NewRoom(power_level_content_override={"ban": "x"})),
            (BadEvent, NewRoom(name="x" * 70_000)),
            (BadEvent, NewRoom(initial_state=[InitialState("a", {"n": 1.5})])),
            (NotStorable, NewRoom(initial_state=[InitialState("a\0", {})])),
        ):
            with self.assertRaises(error):
                await self.changes.create(ALICE, new)
        found = await self.read(
            lambda txn: txn.execute("SELECT count(*) FROM synrepl._rooms").fetchone()
        )
        self.assertEqual(found, (0,))

    async def test_an_upgrade_takes_the_state_along_and_leaves_a_tombstone(self) -> None:
        for version in ("11", "12"):
            alias = f"old{version}"
            old = await self.create(name="N", room_version="10", room_alias_name=alias)
            new, tombstone = await self.changes.upgrade(ALICE, old, version)
            self.assertEqual(await self.content(new, "m.room.name"), {"name": "N"})
            create = await self.content(new, "m.room.create")
            assert create is not None
            self.assertEqual(create["predecessor"]["room_id"], old)
            left = await self.content(old, "m.room.tombstone")
            assert left is not None
            self.assertEqual(left["replacement_room"], new)
            self.assertEqual(await self.aliases.room_of(f"#{alias}:test"), new)
            self.assertIsNotNone(tombstone.stream_id)

    async def test_who_may_not_send_a_tombstone_cannot_upgrade(self) -> None:
        old = await self.create(preset="public_chat")
        await self.changes.join(BOB, old, {})
        with self.assertRaises(EventNotAllowed):
            await self.changes.upgrade(BOB, old, "11")
        found = await self.read(
            lambda txn: txn.execute("SELECT count(*) FROM synrepl._rooms").fetchone()
        )
        self.assertEqual(found, (1,))


class ChangingMemberships(SendingServiceCase):
    """Joining, leaving and the rest."""

    async def test_an_invited_user_joins_and_leaves(self) -> None:
        room_id = await self.create()
        with self.assertRaises(EventNotAllowed):
            await self.changes.join(BOB, room_id, {})
        await self.changes.set_membership(ALICE, room_id, BOB.user_id, "invite", {"reason": "r"})
        content = await self.content(room_id, "m.room.member", BOB.user_id)
        self.assertEqual(content, {"membership": "invite", "reason": "r"})
        self.assertIsNotNone(await self.changes.join(BOB, room_id, {}))
        self.assertIsNone(await self.changes.join(BOB, room_id, {}))
        await self.say(room_id, BOB)
        await self.changes.set_own_membership(BOB, room_id, "leave", {})
        with self.assertRaises(EventNotAllowed):
            await self.say(room_id, BOB)

    async def test_kicks_bans_and_unbans_need_the_membership_that_they_end(self) -> None:
        room_id = await self.create(preset="public_chat")
        change = self.changes.set_membership
        await self.changes.join(BOB, room_id, {})
        with self.assertRaises(EventNotAllowed):
            await change(BOB, room_id, ALICE.user_id, "leave", {}, ("join",))
        with self.assertRaises(EventNotAllowed):
            await change(ALICE, room_id, BOB.user_id, "leave", {}, ("ban",))
        await change(ALICE, room_id, BOB.user_id, "ban", {})
        with self.assertRaises(EventNotAllowed):
            await self.changes.join(BOB, room_id, {})
        await change(ALICE, room_id, BOB.user_id, "leave", {}, ("ban",))
        await self.changes.join(BOB, room_id, {})
        await change(ALICE, room_id, BOB.user_id, "leave", {}, ("join", "invite", "knock"))
        self.assertEqual(await self.membership(room_id, BOB.user_id), "leave")
        with self.assertRaises(BadIdentifier):
            await change(ALICE, room_id, "bob", "invite", {})

    async def test_a_user_knocks_and_is_invited(self) -> None:
        rule = [InitialState("m.room.join_rules", {"join_rule": "knock"})]
        room_id = await self.create(initial_state=rule)
        await self.changes.set_own_membership(BOB, room_id, "knock", {"reason": "please"})
        self.assertEqual(await self.membership(room_id, BOB.user_id), "knock")
        await self.changes.set_membership(ALICE, room_id, BOB.user_id, "invite", {})
        await self.changes.join(BOB, room_id, {})

    async def test_a_restricted_room_is_joined_by_members_of_another(self) -> None:
        club = await self.create(preset="public_chat")
        for version in ("8", "10", "11", "12"):
            rule = {
                "join_rule": "restricted",
                "allow": [
                    {"type": "other"},
                    "x",
                    {"type": "m.room_membership", "room_id": 5},
                    {"type": "m.room_membership", "room_id": club},
                ],
            }
            first = [InitialState("m.room.join_rules", rule)]
            room_id = await self.create(initial_state=first, room_version=version)
            with self.assertRaises(EventNotAllowed):
                await self.changes.join(CAROL, room_id, {})
            await self.changes.join(BOB, club, {})
            await self.changes.join(BOB, room_id, {})
            content = await self.content(room_id, "m.room.member", BOB.user_id)
            assert content is not None
            self.assertEqual(content["join_authorised_via_users_server"], ALICE.user_id)

    async def test_only_a_room_that_was_left_is_forgotten(self) -> None:
        room_id = await self.create(preset="public_chat")
        with self.assertRaises(StillInRoom):
            await self.changes.forget(ALICE, room_id)
        await self.changes.join(BOB, room_id, {})
        await self.changes.set_own_membership(BOB, room_id, "leave", {})
        for _ in range(2):
            await self.changes.forget(BOB, room_id)
        found = await self.read(
            lambda txn: txn.execute("SELECT user_id FROM synrepl._forgotten_rooms").fetchall()
        )
        self.assertEqual(found, [(BOB.user_id,)])
        with self.assertRaises(UnknownRoom):
            await self.changes.forget(BOB, "!none:test")


class NamingRooms(SendingServiceCase):
    """Aliases."""

    async def test_a_room_is_found_by_its_alias(self) -> None:
        room_id = await self.create(room_alias_name="name")
        self.assertEqual(await self.aliases.room_of("#name:test"), room_id)
        content = await self.content(room_id, "m.room.canonical_alias")
        self.assertEqual(content, {"alias": "#name:test"})
        with self.assertRaises(AliasInUse):
            await self.create(room_alias_name="name")
        await self.aliases.add(ALICE, "#other:test", room_id)
        self.assertEqual(await self.aliases.of_room(ALICE, room_id), ["#name:test", "#other:test"])

    async def test_an_alias_is_given_back_when_the_room_is_not_created(self) -> None:
        self.one.writer.failed_over(99)  # the lease is gone, so nothing can be written
        with self.assertRaises(SynreplError):
            await self.create(room_alias_name="name")
        found = await self.read(
            lambda txn: txn.execute("SELECT count(*) FROM synrepl._room_aliases").fetchone()
        )
        self.assertEqual(found, (0,))

    async def test_only_members_add_and_only_the_powerful_remove(self) -> None:
        room_id = await self.create(preset="public_chat")
        with self.assertRaises(EventNotAllowed):
            await self.aliases.add(BOB, "#b:test", room_id)
        with self.assertRaises(EventNotAllowed):
            await self.aliases.of_room(BOB, room_id)
        for identity in (BOB, CAROL):
            await self.changes.join(identity, room_id, {})
        await self.aliases.add(BOB, "#b:test", room_id)
        with self.assertRaises(EventNotAllowed):
            await self.aliases.remove(CAROL, "#b:test")
        await self.aliases.remove(BOB, "#b:test")
        await self.aliases.add(BOB, "#b:test", room_id)
        await self.aliases.remove(ALICE, "#b:test")
        with self.assertRaises(UnknownAlias):
            await self.aliases.remove(ALICE, "#b:test")

    async def test_what_is_no_alias_of_this_server_is_refused(self) -> None:
        room_id = await self.create()
        for alias in (
            "",
            "#",
            "b",
            "#a:other",
            "#:test",
            "#a b:test",
            "#a\0:test",
            f"#{'a' * 300}:test",
        ):
            with self.assertRaises(BadAlias):
                await self.aliases.add(ALICE, alias, room_id)
        for alias in ("#none:test", "#a\0:test", ""):
            with self.assertRaises(UnknownAlias):
                await self.aliases.room_of(alias)


class RepeatingRequests(SendingServiceCase):
    """Transaction IDs."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.room_id = await self.create(preset="public_chat")
        self.request_id = ClientRequestId(f"send {self.room_id}", "t1")

    async def test_a_repeated_request_gets_the_same_event(self) -> None:
        first = await self.say(self.room_id, request_id=self.request_id)
        again = await self.say(self.room_id, request_id=self.request_id)
        other = await self.say(self.room_id, request_id=self.request_id._replace(txn_id="t2"))
        by_bobs = ALICE._replace(device_id="other device")
        of_device = await self.say(self.room_id, by_bobs, request_id=self.request_id)
        self.assertEqual(first, again)
        self.assertEqual(len({first, other, of_device}), 3)

    async def test_also_when_the_event_would_not_be_allowed_any_more(self) -> None:
        await self.changes.join(BOB, self.room_id, {})
        first = await self.say(self.room_id, BOB, request_id=self.request_id)
        await self.changes.set_membership(ALICE, self.room_id, BOB.user_id, "ban", {})
        self.assertEqual(await self.say(self.room_id, BOB, request_id=self.request_id), first)
        with self.assertRaises(EventNotAllowed):
            await self.say(self.room_id, BOB)

    async def test_also_at_the_same_time(self) -> None:
        made = [
            Deferred.fromCoroutine(self.say(self.room_id, request_id=self.request_id))
            for _ in range(5)
        ]
        self.assertEqual(len(set(await gatherResults(made))), 1)


class SendingFromAnywhere(SendingServiceCase):
    """Two processes persist rooms, and each takes the requests of all."""

    writers = ("one", "two")

    async def rooms(self) -> list[tuple[str, str]]:
        """Rooms of both processes, with their writers."""
        found: dict[str, str] = {}
        while len(set(found.values())) < 2:
            room_id = await self.create(preset="public_chat")
            found[room_id] = (await self.sender.placements.of(room_id)).writer
        return list(found.items())

    async def test_events_are_persisted_by_the_writer_of_their_room(self) -> None:
        for room_id, writer in await self.rooms():
            for name, process in self.processes.items():
                process.forwarded.clear()
                sent = await process.sender.send(ALICE, room_id, "m.room.message", {"b": 2})
                self.assertEqual(sent.writer, writer)
                expected = [] if name == writer else [(writer, "send event")]
                self.assertEqual(process.forwarded, expected)

    async def test_rooms_are_created_by_their_writer(self) -> None:
        first = self.processes["one"]
        await self.rooms()
        self.assertIn(("two", "create room"), first.forwarded)
        self.assertNotIn(("one", "create room"), first.forwarded)

    async def test_errors_cross_the_boundary(self) -> None:
        for room_id, _ in await self.rooms():
            for process in self.processes.values():
                send = process.sender.send
                with self.assertRaises(EventNotAllowed) as raised:
                    await send(BOB, room_id, "m.room.message", {})
                self.assertIn(BOB.user_id, str(raised.exception))
                with self.assertRaises(BadEvent):
                    await send(ALICE, room_id, "m.room.message", {"n": 2**70})
                with self.assertRaises(NotStorable):
                    await send(ALICE, room_id, "a\0", {})

    async def test_a_repeated_request_gets_the_same_event_from_any_process(self) -> None:
        for room_id, _ in await self.rooms():
            request_id = ClientRequestId(f"send {room_id}", "t")
            sent: list[SentEvent] = []
            for process in self.processes.values():
                sent.append(
                    await process.sender.send(
                        ALICE, room_id, "m.room.message", {}, request_id=request_id
                    )
                )
            # Where the room was before is known where it was sent.
            self.assertEqual(len({each._replace(after=0) for each in sent}), 1)

    async def test_a_room_that_moved_is_found_again(self) -> None:
        room_id, writer = (await self.rooms())[0]
        other = next(each for each in self.writers if each != writer)
        for process in self.processes.values():
            await process.placements.of(room_id)
        await self.processes["one"].room_writers.move(room_id, other)
        await self.processes[writer].placements.of(room_id, fresh=True)
        sent = await self.processes[other].sender.send(ALICE, room_id, "m.room.message", {})
        self.assertEqual(sent.writer, other)

    async def test_a_process_whose_address_is_not_known_is_named(self) -> None:
        rooms = await self.rooms()
        for process in self.processes.values():
            process.others = {}
        for room_id, writer in rooms:
            other = next(each for name, each in self.processes.items() if name != writer)
            with self.assertRaises(WriterUnreachable) as raised:
                await other.sender.send(ALICE, room_id, "m.room.message", {})
            self.assertIn(writer, str(raised.exception))

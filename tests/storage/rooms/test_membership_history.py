"""What users were in rooms at earlier positions of the stream: as it was then, whatever resolutions and purges did."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from simulator.rooms.random_rooms import USERS, RandomRoom, RestlessRoom
from simulator.rooms.room_model import receive
from synrepl.positions.vector import PositionVector
from synrepl.rooms import Event, Room
from synrepl.storage.database import Transaction
from synrepl.storage.migrations import load
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.storage.rooms.timelines.user_rooms import rooms_with_membership
from tests.storage.rooms.kept_rooms import MaintainedCase

ROOMS = int(os.environ.get("SYNREPL_ROOM_EXAMPLES", "25"))

ROOM = "FROM synrepl._rooms WHERE room_id = %s"
HEADS = f"FROM synrepl._room_heads WHERE room_no = (SELECT room_no {ROOM})"
HISTORY = f"FROM synrepl._membership_history WHERE room_no = (SELECT room_no {ROOM})"


class KnownMemberships(NamedTuple):
    """The memberships in a room when a position was reached."""

    token: int
    memberships: Mapping[str, str]


class BobOfRoom:
    """Events that set the membership of a user, some on another branch than the others."""

    def __init__(self, made: RandomRoom) -> None:
        maker, (create, joined, levels, rules, last) = made.maker, made.events

        def member(
            membership: str, follows: Event, cites: list[Event], sender: str = "@bob:b"
        ) -> Event:
            content = {"membership": membership}
            return maker.event("m.room.member", content, [follows], cites, sender, "@bob:b")

        own, by_alice = [create, levels, rules], [create, levels, joined]
        self.joins = member("join", last, own)
        self.is_banned = member("ban", self.joins, [*by_alice, self.joins], "@alice:a")
        self.changes_name = member("join", self.joins, [*own, self.joins])
        self.changes_name_again = member("join", self.changes_name, [*own, self.changes_name])
        cites = [create, levels, self.joins]
        self.says = maker.event("m.room.message", {}, [self.joins], cites, "@bob:b")
        self.leaves = member("leave", self.says, cites)
        self.is_unbanned = member("leave", self.is_banned, [*by_alice, self.is_banned], "@alice:a")


class MembershipHistory(MaintainedCase):
    """Random rooms with forks, whose memberships are resolved."""

    async def test_a_user_was_what_the_current_state_was_then(self) -> None:
        for seed in range(ROOMS):
            rng = Random(seed)
            made = RestlessRoom(rng, rng.choice(["1", "6", "11"]), f"history{seed}")
            known = await self.persisted(rng, made)
            for each in known:
                self.assertEqual(await self.memberships(made, each.token), each, seed)
            await self.check_heads(made)

    async def test_an_event_that_loses_a_resolution_changes_nothing(self) -> None:
        made = RandomRoom(Random(1), "12", "lost")
        bob = BobOfRoom(made)
        last = await self.persist_all(made, [*made.events, bob.joins, bob.is_banned])
        lost = await self.persist_all(made, [bob.changes_name], live=False)
        self.assertGreater(lost, last)
        await self.persist_all(made, [bob.is_unbanned])
        for token, membership in ((last - 1, "join"), (last, "ban"), (lost, "ban")):
            found = await self.memberships(made, token)
            self.assertEqual(found.memberships["@bob:b"], membership, token)
        await self.check_heads(made)

    async def test_an_event_that_comes_as_history_counts_from_when_it_came(self) -> None:
        made = RandomRoom(Random(1), "12", "late")
        bob = BobOfRoom(made)
        before = await self.persist_all(made, [*made.events, bob.joins, bob.changes_name])
        await self.persist_all(made, [bob.is_banned], backfilled=True)
        banned = await self.persist_all(made, [])
        self.assertGreater(banned, before)
        await self.persist_all(made, [bob.is_unbanned])
        for token, membership in ((before, "join"), (banned, "ban")):
            found = await self.memberships(made, token)
            self.assertEqual(found.memberships["@bob:b"], membership, token)
        await self.check_heads(made)

    async def test_verification_finds_a_membership_that_nothing_tells(self) -> None:
        made = RandomRoom(Random(1), "12", "untold")
        bob = BobOfRoom(made)
        events = [*made.events, bob.joins, bob.is_banned, bob.changes_name]
        await self.persist_all(made, events, live=False)
        await self.check_heads(made)
        drop = f"DELETE {HISTORY}"
        await self.read(lambda txn: txn.execute(drop, (made.room_id,)) and None)
        found = [each for each in await self.verified(made.room_id) if each[0] == "wrong heads"]
        detail = "its membership is ban, and its events and history have join"
        self.assertEqual(found, [("wrong heads", "@bob:b", detail)])

    async def test_what_was_stored_before_there_was_a_history_gets_one(self) -> None:
        made = RandomRoom(Random(1), "12", "upgraded")
        bob = BobOfRoom(made)
        events = [*made.events, bob.joins, bob.is_banned, bob.changes_name]
        token = await self.persist_all(made, events, live=False)
        await self.read(lambda txn: txn.execute(f"DELETE {HISTORY}", (made.room_id,)) and None)
        migration = next(each for each in load().migrations if each.name == "membership_history")
        (fill,) = [each for each in migration.sql.split(";") if "greatest(" in each]
        await self.read(lambda txn: txn.execute(fill) and None)
        await self.persist_all(made, [bob.is_unbanned])
        found = await self.memberships(made, token)
        self.assertEqual(found.memberships["@bob:b"], "ban")
        await self.check_heads(made)

    async def test_what_is_told_by_events_has_no_row(self) -> None:
        made = RestlessRoom(Random(1), "10", "plain")
        await self.one.persist(made.room_id, made.version, made.events)
        self.assertEqual(await self.number(f"SELECT count(*) {HISTORY}", made), 0)

    async def test_a_purge_leaves_what_users_were_from_its_point_on(self) -> None:
        checked = rows = 0
        for seed in range(ROOMS):
            rng = Random(1_000 + seed)
            made = RestlessRoom(rng, rng.choice(["1", "6", "11"]), f"purged{seed}")
            known = await self.persisted(rng, made)
            purged = 0
            for part in (rng.random() * 0.7, 0.8):
                bound = known[int(len(known) * part)].token
                point = PurgePoint.of_stream(bound)
                if rng.random() < 0.5:
                    point = PurgePoint.of_topological(max(1, int(len(made.events) * part * 0.5)))
                await self.maintenance.purge(made.room_id, point, index_check=False)
                purged = await self.number(f"SELECT purged_stream_id {HEADS}", made)
                for each in known:
                    if each.token >= purged:
                        self.assertEqual(await self.memberships(made, each.token), each, seed)
                        checked += 1
            rows += await self.number(f"SELECT count(*) {HISTORY} AND is_purged", made)
            twice = f"SELECT count(*) - count(DISTINCT user_id) {HISTORY} AND is_purged"
            self.assertEqual(await self.number(twice, made), 0)
            self.assertGreater(purged, 0)
            await self.check_heads(made)
        self.assertGreater(checked, ROOMS)
        self.assertGreater(rows, 0)

    async def test_a_membership_that_was_purged_is_known_after_it_has_changed(self) -> None:
        made = RandomRoom(Random(1), "12", "purged then changed")
        bob = BobOfRoom(made)
        joined = await self.persist_all(made, [*made.events, bob.joins])
        token = await self.persist_all(made, [bob.says])
        await self.maintenance.purge(made.room_id, PurgePoint.of_stream(token), index_check=False)
        self.assertEqual(await self.number(f"SELECT purged_stream_id {HEADS}", made), joined)
        self.assertEqual(await self.number(f"SELECT count(*) {HISTORY}", made), 0)
        await self.persist_all(made, [bob.leaves])
        self.assertEqual((await self.memberships(made, token)).memberships["@bob:b"], "join")
        await self.check_heads(made)

    async def check_heads(self, made: RandomRoom) -> None:
        """Verification finds nothing wrong with memberships; random events have no content hashes."""
        found = await self.verified(made.room_id)
        self.assertEqual([each for each in found if each[0] != "wrong content"], [])

    async def persist_all(
        self,
        made: RandomRoom,
        events: Sequence[Event],
        *,
        live: bool = True,
        backfilled: bool = False,
    ) -> int:
        """Persist events; the position of the stream after them."""
        incoming = [IncomingEvent(each, live, backfilled) for each in events]
        if incoming:
            await self.one.persist(made.room_id, made.version, incoming)
        return await self.number(
            "SELECT max(stream_id) FROM synrepl.events WHERE room_id = %s", made
        )

    async def persisted(self, rng: Random, made: RandomRoom) -> list[KnownMemberships]:
        """Persist a random room in batches; what its memberships were after each."""
        room = Room(made.version)
        known = []
        for number in range(rng.randrange(4, 9)):
            part = made.more(rng.randrange(1, 15)) if number else [*made.events, *made.more(8)]
            if number and rng.random() < 0.5:
                rng.shuffle(part)
            live, is_history = rng.random() < 0.6, number > 0 and rng.random() < 0.2
            incoming = [IncomingEvent(each, live, is_history) for each in part]
            token = await self.persist_all(made, part, live=live, backfilled=is_history)
            for each in incoming:
                receive(room, each)
            memberships = {}
            for key, event_id in room.current_state().items():
                if key[0] == "m.room.member":
                    memberships[key[1]] = str(room[event_id].event.membership)
            known.append(KnownMemberships(token, memberships))
        return known

    async def number(self, query: str, made: RandomRoom) -> int:
        """A number about a room."""
        return int(await self.read(lambda txn: txn.execute(query, (made.room_id,)).fetchone()[0]))

    async def memberships(self, made: RandomRoom, token: int) -> KnownMemberships:
        """The memberships as of a position."""

        def work(txn: Transaction) -> dict[str, str]:
            found = {}
            upto, rooms = PositionVector(linear=token), [made.room_id]
            for user in USERS:
                for each in rooms_with_membership(txn, user, upto, rooms):
                    if each.has_event:
                        found[user] = each.membership
            return found

        return KnownMemberships(token, await self.read(work))

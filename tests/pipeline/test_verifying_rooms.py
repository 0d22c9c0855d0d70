"""The tasks of ``verify-rooms`` over databases of real Synapses, sound and damaged by hand."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from random import Random
from typing import Any

import psycopg2
from twisted.trial.unittest import TestCase

from simulator.rooms.random_rooms import USERS, RandomRoom
from synrepl.pipeline.rooms.differences import DifferenceKind
from synrepl.pipeline.rooms.verify import NAMED_ONCE, VerifyOptions, part_differences
from tests.pipeline.rooms_in_process import run_in_process
from tests.rooms.test_real_rooms import FORKED, Recorded
from tests.storage.foreign_rooms import published_keys, room_database, rooms_of
from tests.storage.rooms.store_case import StoreCase

#: Events at which 1.43.0 has another state than what follows from the events; see tests/rooms/test_real_rooms.py.
KNOWN = {"1.43.0": {"$A5ThPzDOpRnD83Z6g6S_cvknHx2fv7mTog8FqHpFFJY"}, "1.163.2": set[str]()}

#: A room with these numbers of events, to be cut often and not at all.
SIZES = (3, 1_000)


def differences(
    dsn: str, version: str, size: int, what_if: str | None = None
) -> list[dict[str, Any]]:
    """The differences of a database, signatures included."""
    options = VerifyOptions(what_if, signatures=True, published=published_keys(version))

    def work(lookup: Any, part: Any, table: Any) -> Any:
        return part_differences(lookup, options, part, table)

    return run_in_process(dsn, work, size, verified=True)


def recorded_room(version: str) -> Recorded:
    """One of the recorded rooms that have no difference and where IDs are hashes; little time is spent on one."""
    rooms = [
        room
        for room in rooms_of(version)
        if not room.room_id.startswith(FORKED) and room.room["room_version"] not in ("1", "2")
    ]
    return sorted(rooms, key=lambda room: len(room.rows))[-3]


def concerned(row: Mapping[str, Any]) -> str:
    """The event, or the group, that a difference concerns; several parts may name it."""
    if row["kind"] == DifferenceKind.MISSING_EVENT:
        return str(row["computed"])
    return str(row["state_group" if row["kind"] in NAMED_ONCE else "event_id"])


class Sound(TestCase):
    timeout = 300

    async def test_nothing_in_sound_rooms_but_what_is_known(self) -> None:
        for version, known in KNOWN.items():
            dsn = await room_database(version, None)
            for size in SIZES:
                found = differences(dsn, version, size)
                self.assertEqual({row["event_id"] for row in found}, known, (version, size))
                self.assertLessEqual({row["kind"] for row in found}, {DifferenceKind.STATE.value})


class DamageOfTheCurrentRelease(TestCase):
    """A room of a server is damaged by hand; the damage is named, and nothing else."""

    timeout = 300
    version = "1.163.2"

    async def setUp(self) -> None:  # type: ignore[override]
        self.dsn = await room_database(self.version, self, [recorded_room(self.version)])

    def damage(self, *statements: str) -> None:
        """Run some statements on the database, each of which changes rows."""
        with (
            closing(psycopg2.connect(self.dsn)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SET session_replication_role = replica")
            for statement in statements:
                cursor.execute(statement)
                self.assertGreater(cursor.rowcount, 0, statement)

    def named(self) -> set[tuple[str, str | None, str]]:
        """Kind, column and event of what is found, the same wherever rooms are cut."""
        first, other = (
            {
                (row["kind"], row["what"], concerned(row))
                for row in differences(self.dsn, self.version, size)
            }
            for size in SIZES
        )
        self.assertEqual(first, other)
        return first

    def one(self, sql: str) -> str:
        """A value of the database."""
        with closing(psycopg2.connect(self.dsn)) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return str(cursor.fetchone()[0])

    def test_a_changed_byte_of_the_content(self) -> None:
        event_id = self.one(f"SELECT min(event_id) FROM events WHERE {MESSAGE}")
        self.damage(
            'UPDATE event_json SET json = replace(json, \'"body": "\', \'"body": "x\')'
            f" WHERE event_id = '{event_id}'"
        )
        self.assertEqual(self.named(), {("wrong content hash", "hashes", event_id)})

    def test_a_changed_byte_of_what_is_signed(self) -> None:
        event_id = self.one(f"SELECT min(event_id) FROM events WHERE {MESSAGE}")
        self.damage(
            "UPDATE event_json SET json = replace(json, '\"origin_server_ts\": ', '\"origin_server_ts\": 1')"
            f" WHERE event_id = '{event_id}'"
        )
        self.assertEqual(self.named(), {("wrong event ID", "event_id", event_id)})

    def test_a_lost_auth_event(self) -> None:
        event_id = self.one(
            "SELECT min(event_id) FROM events e WHERE type = 'm.room.power_levels' AND outlier = false"
            " AND (SELECT count(*) FROM event_auth a WHERE a.auth_id = e.event_id) > 3",
        )
        self.damage(
            f"DELETE FROM event_json WHERE event_id = '{event_id}'",
            f"DELETE FROM events WHERE event_id = '{event_id}'",
        )
        found = self.named()
        self.assertEqual({(kind, who) for kind, _, who in found}, {("missing event", event_id)})

    def test_an_event_without_json(self) -> None:
        event_id = self.one(f"SELECT min(event_id) FROM events WHERE {MESSAGE}")
        self.damage(f"DELETE FROM event_json WHERE event_id = '{event_id}'")
        self.assertEqual(self.named(), {("no JSON", None, event_id)})

    def test_a_swapped_entry_of_a_state_group(self) -> None:
        self.damage(SWAP)
        found = differences(self.dsn, self.version, 1_000)
        self.assertEqual({row["kind"] for row in found}, {"state"})
        self.assertEqual({row["state_key"] for row in found}, {""})
        self.assertEqual(len({row["event_id"] for row in found}), 1)

    def test_a_group_of_another_room(self) -> None:
        self.damage(
            "UPDATE state_groups SET room_id = '!elsewhere:x'"
            " WHERE id = (SELECT max(state_group) FROM event_to_state_groups)"
        )
        self.assertEqual(
            {(kind, what) for kind, what, _ in self.named()}, {("other room", "state_group")}
        )

    def test_a_verdict_that_the_rules_do_not_give(self) -> None:
        event_id = self.one(f"SELECT min(event_id) FROM events WHERE {MESSAGE}")
        self.damage(
            f"INSERT INTO rejections (event_id, reason, last_check) VALUES ('{event_id}', 'x', '')"
        )
        self.assertEqual(self.named(), {("verdict", None, event_id)})

    def test_edges_and_columns_that_differ_from_the_json(self) -> None:
        event_id = self.one(f"SELECT min(event_id) FROM events WHERE {MESSAGE}")
        self.damage(
            f"DELETE FROM event_edges WHERE event_id = '{event_id}'",
            f"UPDATE events SET sender = '@else:x' WHERE event_id = '{event_id}'",
        )
        self.assertEqual(
            self.named(),
            {("wrong edges", "prev_events", event_id), ("wrong column", "sender", event_id)},
        )

    def test_a_bad_signature(self) -> None:
        event_id = self.one(f"SELECT min(event_id) FROM events WHERE {MESSAGE}")
        self.damage(
            "UPDATE event_json SET json = regexp_replace(json, '(\"ed25519:[^\"]+\": \")....', '\\1AAAA')"
            f" WHERE event_id = '{event_id}'"
        )
        self.assertEqual(self.named(), {("bad signature", "signatures", event_id)})

    def test_an_event_without_a_state_group(self) -> None:
        event_id = self.one(f"SELECT min(event_id) FROM events WHERE {MESSAGE}")
        self.damage(f"DELETE FROM event_to_state_groups WHERE event_id = '{event_id}'")
        self.assertEqual(self.named(), {("no state group", None, event_id)})


class DamageOfAnOlderRelease(DamageOfTheCurrentRelease):
    version = "1.43.0"

    async def test_a_swapped_entry_of_a_state_group(self) -> None:  # type: ignore[override]
        # The other room has no entry that could be swapped.
        (room,) = [each for each in rooms_of(self.version) if each.room_id.startswith("!eqNveqQ")]
        self.dsn = await room_database(self.version, self, [room])
        super().test_a_swapped_entry_of_a_state_group()


class BehindAGap(TestCase):
    timeout = 300

    async def test_an_event_without_a_state_group_is_named(self) -> None:
        version = "1.43.0"
        (room,) = [each for each in rooms_of(version) if each.room_id.startswith("!jKTZyrLZgaoGBX")]
        dsn = await room_database(version, self, [room])
        with (
            closing(psycopg2.connect(dsn)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(
                "DELETE FROM event_to_state_groups WHERE event_id = (SELECT min(e.event_id)"
                f" FROM events e JOIN event_edges d ON d.event_id = e.event_id WHERE {MESSAGE}"
                " AND NOT EXISTS (SELECT FROM events p WHERE p.event_id = d.prev_event_id))"
                " RETURNING event_id"
            )
            ((event_id,),) = cursor.fetchall()
        for size in SIZES:
            found = {(row["kind"], row["event_id"]) for row in differences(dsn, version, size)}
            self.assertEqual(found, {("no state group", event_id)}, size)


class OwnStore(StoreCase):
    def differences(self, size: int, what_if: str | None = None) -> list[dict[str, Any]]:
        def work(lookup: Any, part: Any, table: Any) -> Any:
            return part_differences(lookup, VerifyOptions(what_if), part, table)

        return run_in_process(self.dsn, work, size, is_own=True, verified=True)

    async def test_nothing_is_found_in_stored_rooms(self) -> None:
        for seed, version in enumerate(("1", "7", "11", "12")):
            made = RandomRoom(Random(seed), version, f"room {seed}")
            made.more(60)
            await self.one.persist(made.room_id, made.version, made.events)
        for size in SIZES:
            # These events come without content hashes.
            found = {row["kind"] for row in self.differences(size)}
            self.assertEqual(found, {DifferenceKind.WRONG_HASH.value}, size)

    async def test_what_another_room_version_would_have_decided(self) -> None:
        made = RandomRoom(Random(1), "9")
        create, joined, levels, *_, last = made.events
        text = {"users": {USERS[0]: "0"}, "state_default": 0}
        changed = made.maker.event(
            "m.room.power_levels", text, [last], [create, joined, levels], key=""
        )
        after = made.maker.event("m.room.message", {}, [changed], [create, joined, changed])
        await self.one.persist(made.room_id, made.version, [*made.events, changed, after])
        self.assertEqual(self.differences(1_000, "9"), [])
        found = self.differences(1_000, "10")
        self.assertEqual(
            [(row["event_id"], row["kind"]) for row in found],
            [(changed.event_id, "verdict"), (after.event_id, "verdict")],
        )
        self.assertTrue(all(row["computed"].startswith("rejected") for row in found))


#: Events that others do not depend on for their verdicts.
MESSAGE = "type = 'm.room.message' AND NOT outlier"

#: In one group that is stored as what it changes, the entry becomes an older event of the same key.
SWAP = """
    UPDATE state_groups_state s SET event_id = o.event_id
    FROM state_events n JOIN state_events o
        ON o.room_id = n.room_id AND o.type = n.type AND o.state_key = n.state_key
    WHERE s.event_id = n.event_id AND o.event_id <> n.event_id AND s.state_key = ''
      AND s.state_group = (
        SELECT max(i.state_group) FROM event_to_state_groups i JOIN state_events e
            ON e.event_id = i.event_id AND e.state_key = ''
        WHERE EXISTS (SELECT FROM state_events a WHERE a.room_id = e.room_id AND a.type = e.type
            AND a.state_key = e.state_key AND a.event_id <> e.event_id)
          AND EXISTS (SELECT FROM state_groups_state x WHERE x.state_group = i.state_group
            AND x.event_id = e.event_id))
"""

"""The invalidations of rows: the pairs of docs/protocol.md, listed by hand."""

from __future__ import annotations

from typing import Any
from unittest import TestCase

from synrepl.streams.catalogue import Catalogue
from synrepl.streams.declared import BadDeclaration, declare
from synrepl.streams.definition import UNTAGGED
from synrepl.streams.effects import BadKeys, Effects, Expansion, Group, Invalidates, scalar
from synrepl.streams.row import Row
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.streams.synapse.current_state import host_of
from synrepl.streams.synapse.events import AllStateRow, EventRow, StateRow
from synrepl.streams.synapse.expansions import SYNAPSE_EXPANSIONS

ALL: list[Any] = [None]
EXPANSIONS = {expansion.name: expansion for expansion in SYNAPSE_EXPANSIONS}
CATALOGUE = Catalogue(SYNAPSE_STREAMS)

#: What a change of a room's current state concerns, with no membership in it.
STATE_ALONE: dict[str, list[Any]] = {
    "get_room_summary": [("!r",)],
    "get_current_state_ids": [("!r",)],
    "get_partial_current_state_ids": [("!r",)],
    "get_room_type": [("!r",)],
    "get_room_encryption": [("!r",)],
}

#: Besides, when @a:x and @b:y:8448 joined, left, or changed their names.
OF_MEMBERS: dict[str, list[Any]] = {
    "is_host_joined": [("!r", "x"), ("!r", "y:8448")],
    "is_host_invited": [("!r", "x"), ("!r", "y:8448")],
    "was_host_joined": [("!r", "x"), ("!r", "y:8448")],
    "get_users_in_room": [("!r",)],
    "get_current_hosts_in_room": [("!r",)],
    "get_users_in_room_with_profiles": [("!r",)],
    "get_number_joined_users_in_room": [("!r",)],
    "get_member_counts": [("!r",)],
    "get_local_users_in_room": [("!r",)],
    "does_pair_of_users_share_a_room": ALL,
    "get_user_in_room_with_profile": [("!r", "@a:x"), ("!r", "@b:y:8448")],
    "get_rooms_for_user": [("@a:x",), ("@b:y:8448",)],
}

#: When the row does not name who changed.
OF_UNKNOWN_MEMBERS: dict[str, list[Any]] = {
    "is_host_joined": [("!r",)],
    "is_host_invited": [("!r",)],
    "was_host_joined": [("!r",)],
    "get_users_in_room": [("!r",)],
    "get_current_hosts_in_room": [("!r",)],
    "get_users_in_room_with_profiles": [("!r",)],
    "get_number_joined_users_in_room": [("!r",)],
    "get_member_counts": [("!r",)],
    "get_local_users_in_room": [("!r",)],
    "does_pair_of_users_share_a_room": ALL,
    "get_user_in_room_with_profile": [("!r",)],
    "get_rooms_for_user": ALL,
}

#: Rows of the ``caches`` stream: what they concern, and what they mark as changed.
NAMES: list[tuple[str, list[Any], dict[Any, list[Any]], dict[str, list[Any]]]] = [
    ("cs_cache_fake", ["!r"], STATE_ALONE, {"room_state": ["!r"]}),
    (
        "cs_cache_fake",
        ["!r", "@a:x", "@b:y:8448"],
        {**STATE_ALONE, **OF_MEMBERS},
        {"room_state": ["!r"], "membership": ["@a:x", "@b:y:8448"]},
    ),
    ("ph_cache_fake", ["!r"], {Group("per_event"): ALL}, {}),
    (
        "dr_cache_fake",
        ["!r"],
        {
            Group("per_event"): ALL,
            Group("per_room"): [("!r",)],
            **STATE_ALONE,
            **OF_UNKNOWN_MEMBERS,
        },
        {},
    ),
]

#: Rows of other streams.
ROWS: list[tuple[Row, dict[str, list[Any]], dict[str, list[Any]]]] = [
    (
        EventRow("$e", "!r", "m.room.message", None, None, None),
        {"get_latest_event_ids_in_room": [("!r",)]},
        {"room_events": ["!r"]},
    ),
    (StateRow("!r", "m.room.name", "", "$e"), STATE_ALONE, {"room_state": ["!r"]}),
    (
        StateRow("!r", "m.room.member", "@a:x", None),
        {
            **STATE_ALONE,
            **OF_MEMBERS,
            "is_host_joined": [("!r", "x")],
            "is_host_invited": [("!r", "x")],
            "was_host_joined": [("!r", "x")],
            "get_user_in_room_with_profile": [("!r", "@a:x")],
            "get_rooms_for_user": [("@a:x",)],
        },
        {"room_state": ["!r"], "membership": ["@a:x"]},
    ),
    (
        AllStateRow("!r"),
        {**STATE_ALONE, **OF_UNKNOWN_MEMBERS},
        {"room_state": ["!r"], "membership": ALL},
    ),
]

#: A row of each other stream that has effects, as it is on the wire of its columns.
OTHERS: list[tuple[str, dict[str, Any], dict[str, list[Any]], dict[str, list[Any]]]] = [
    (
        "push_rules",
        {"user_id": "@a"},
        {"get_push_rules_for_user": [("@a",)]},
        {"push_rules": ["@a"]},
    ),
    ("pushers", {"user_id": "@a"}, {"get_if_user_has_pusher": [("@a",)]}, {}),
    (
        "account_data",
        {"user_id": "@a", "room_id": "!r"},
        {
            "get_global_account_data_for_user": [("@a",)],
            "get_room_account_data_for_user": [("@a",)],
            "get_account_data_for_room": [("@a", "!r")],
        },
        {"account_data": ["@a"]},
    ),
    ("tag_account_data", {"user_id": "@a"}, {}, {"account_data": ["@a"]}),
    ("receipts", {"room_id": "!r"}, {}, {"receipts": ["!r"]}),
    ("typing", {"room_id": "!r"}, {}, {"typing": ["!r"]}),
    ("presence", {"user_id": "@a"}, {}, {"presence": ["@a"]}),
    ("to_device", {"entity": "@a"}, {}, {"to_device": ["@a"]}),
    ("device_lists", {"entity": "@a"}, {}, {"device_lists": ["@a"]}),
    (
        "un_partial_stated_room",
        {"room_id": "!r"},
        {
            "is_partial_state_room": [("!r",)],
            "get_partial_state_servers_at_join": [("!r",)],
        },
        {},
    ),
    (
        "un_partial_stated_event",
        {"event_id": "$e", "rejection_status_changed": False},
        {"is_partial_state_event": [("$e",)], "_get_state_group_for_event": [("$e",)]},
        {},
    ),
    (
        "un_partial_stated_event",
        {"event_id": "$e", "rejection_status_changed": True},
        {
            "is_partial_state_event": [("$e",)],
            "_get_state_group_for_event": [("$e",)],
            "_get_event_cache": [("$e",)],
            "get_event": [("$e",)],
        },
        {},
    ),
    (
        "thread_subscriptions",
        {"user_id": "@a", "room_id": "!r", "event_id": "$e"},
        {"get_subscription_for_thread": [("@a", "!r", "$e")]},
        {},
    ),
]


def happens(effects: Effects, source: Any) -> tuple[dict[Any, list[Any]], dict[str, list[Any]]]:
    """The keys by cache, and the entities by change index; those that have none left out."""
    keys: dict[Any, list[Any]] = {}
    entities: dict[str, list[Any]] = {}
    for effect in effects:
        if isinstance(effect, Invalidates):
            keys.setdefault(effect.cache, []).extend(effect.keys(source))
        else:
            entities.setdefault(effect.index, []).extend(effect.entities(source))
    return (
        {cache: sorted(found, key=repr) for cache, found in keys.items() if found},
        {index: found for index, found in entities.items() if found},
    )


class Pairs(TestCase):
    maxDiff = None

    def test_expands_names_that_stand_for_many_caches(self) -> None:
        for name, keys, caches, marks in NAMES:
            with self.subTest(name, keys=keys):
                self.assertEqual(happens(EXPANSIONS[name].effects, keys), (caches, marks))
        self.assertEqual({name for name, *_ in NAMES}, set(EXPANSIONS))

    def test_rows_of_events_invalidate_caches(self) -> None:
        effects = CATALOGUE["events"].effects
        for row, caches, marks in ROWS:
            with self.subTest(str(row)):
                self.assertEqual(happens(effects[type(row)], row), (caches, marks))
        self.assertEqual({type(row) for row, *_ in ROWS}, set(effects))

    def test_rows_of_other_streams_invalidate_caches(self) -> None:
        for name, columns, caches, marks in OTHERS:
            with self.subTest(name):
                kind = CATALOGUE[name].kinds[UNTAGGED]
                row = kind(*[columns.get(field) for field in kind.__struct_fields__])
                self.assertEqual(happens(CATALOGUE[name].effects[kind], row), (caches, marks))
        expected = {name for name, *_ in OTHERS} | {"events"}
        self.assertEqual(expected, {stream.name for stream in CATALOGUE if stream.effects})

    def test_handles_a_thousand_members(self) -> None:
        members = [f"@u{n}:host{n % 10}" for n in range(1_000)]
        caches, marks = happens(EXPANSIONS["cs_cache_fake"].effects, ["!r", *members])
        self.assertEqual(len(caches["is_host_joined"]), 10)
        self.assertEqual(len(caches["get_rooms_for_user"]), 1_000)
        self.assertEqual(caches["get_users_in_room"], [("!r",)])
        self.assertEqual(marks, {"room_state": ["!r"], "membership": members})

    def test_finds_the_host_of_a_user(self) -> None:
        for user, host in (
            ("@a:x", "x"),
            ("@a:[::1]:80", "[::1]:80"),
            ("a", ""),
            ("", ""),
            (5, ""),
        ):
            self.assertEqual(host_of(user), host)


class Keys(TestCase):
    def test_accepts_valid_keys(self) -> None:
        for keys in (["!r"], ["!r", None, True, 1, 2.5]):
            for expansion in SYNAPSE_EXPANSIONS:
                self.assertIs(expansion.check(keys), keys)
        Expansion("any", (), least=0).check([])

    def test_refuses_bad_keys(self) -> None:
        for expansion in SYNAPSE_EXPANSIONS:
            for bad in (None, [], [["!r"]], ["!r", {}], ["!r", float("nan")], [b"!r"]):
                with self.subTest(expansion.name, keys=bad), self.assertRaises(BadKeys) as raised:
                    expansion.check(bad)
                self.assertIn(f"cache name {expansion.name!r} needs", str(raised.exception))
        with self.assertRaises(BadKeys):
            Expansion("two", (), least=2).check(["one"])

    def test_long_keys_are_shortened_in_errors(self) -> None:
        with self.assertRaises(BadKeys) as raised:
            EXPANSIONS["cs_cache_fake"].check(["x" * 10_000, []])
        self.assertLess(len(str(raised.exception)), 300)

    def test_only_finite_scalars_are_cache_keys(self) -> None:
        self.assertTrue(scalar(("a", 1, 2.5, True, None)))
        for bad in ([], {}, (), b"", object(), float("nan"), float("inf"), -float("inf")):
            self.assertFalse(scalar(("a", bad)))


class Declared(TestCase):
    def test_effects_of_columns(self) -> None:
        stream = declare(
            "orders",
            {"customer": "text", "order_id": "bigint", "data": "json?"},
            invalidates={"get_order": ["customer", "order_id"], "all_orders": []},
            marks={"customers": "customer"},
        )
        (effects,) = stream.effects.values()
        row = stream.kinds[UNTAGGED]("c1", 5)
        expected = {"get_order": [("c1", 5)], "all_orders": [()]}
        self.assertEqual(happens(effects, row), (expected, {"customers": ["c1"]}))

    def test_columns_that_make_no_key(self) -> None:
        columns = {"customer": "text", "data": "json"}
        for wrong in (
            {"invalidates": {"get": ["data"]}},
            {"invalidates": {"get": ["nowhere"]}},
            {"marks": {"index": "data"}},
        ):
            with self.subTest(str(wrong)), self.assertRaises(BadDeclaration):
                declare("orders", columns, **wrong)  # type: ignore[arg-type]

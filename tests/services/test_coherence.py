"""Facts invalidate caches and mark change indexes; caches that nothing invalidates are refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.caches import make_caches
from synrepl.caches.cache import BadCache
from synrepl.caches.changes import ChangeIndex, HasChanged
from synrepl.services.coherence.coherence import MOMENTS, Coherence, NeverInvalidated, NoSuchRows
from synrepl.services.coherence.coherence import SourceNotFollowed as NotFollowed
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.declared import declare
from synrepl.streams.definition import UNTAGGED, Fact
from synrepl.streams.effects import Expansion, Group, Invalidates, Marks, columns_key, entity
from synrepl.streams.row import Row
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.streams.synapse.account_data import AccountDataRow
from synrepl.streams.synapse.caches import CachesRow
from synrepl.streams.synapse.events import AllStateRow, EventRow, StateRow
from synrepl.streams.synapse.push_rules import PushRulesRow
from synrepl.streams.synapse.tag_account_data import TagAccountDataRow
from tests.services.world import RecordingLog

YES, NO, MAYBE = HasChanged.YES, HasChanged.NO, HasChanged.MAYBE

ORDERS = declare("orders", {"customer": "text", "data": "json?"})
OrderRow = ORDERS.kinds[UNTAGGED]
CATALOGUE = Catalogue((*SYNAPSE_STREAMS, ORDERS))


def named(name: str, *keys: Any) -> CachesRow:
    return CachesRow(name, list(keys), 1)


def whole(name: str) -> CachesRow:
    return CachesRow(name, None, 1)


class CoherenceCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.caches = make_caches()
        self.log = RecordingLog()

    def declare(self, name: str, arity: int = 1, **options: Any) -> Any:
        function = (lambda a: [a]) if arity == 1 else (lambda a, b: [a, b])
        return self.caches.cached(name=name, **options)(function)

    def filled(self, name: str, *keys: tuple[Any, ...], **options: Any) -> None:
        get = self.declare(name, len(keys[0]), **options)
        for key in keys:
            get(*key)

    def left(self, name: str) -> list[Any]:
        (cache,) = self.caches.named(name)
        return list(cache.entries)

    def coherence(self, followed: Iterable[str] | None = None) -> Coherence:
        self.coherent = Coherence(
            self.caches, CATALOGUE, self.log, None if followed is None else set(followed)
        )
        return self.coherent

    def start(self) -> None:
        """Begin every stream at 0."""
        self.coherence()
        for stream in CATALOGUE:
            self.coherent.begin(stream.name, "master", 0)

    def apply(self, stream: str, token: int, *rows: Row, writer: str = "master") -> None:
        """Apply one fact, the next one of its writer."""
        self.coherent.apply(stream, writer, token - 1, [Fact(token, writer, rows)])

    @property
    def warnings(self) -> list[str]:
        return [text for level, text in self.log.lines if level == "warn"]


class CheckingDeclarations(CoherenceCase):
    def check(self, followed: Iterable[str] | None = None) -> None:
        self.coherence(followed).check()

    def test_refuses_a_cache_that_nothing_invalidates(self) -> None:
        self.declare("get_user")
        with self.assertRaisesRegex(NeverInvalidated, "ever makes cache 'get_user' stale"):
            self.check()

    def test_accepts_every_kind_of_declaration_and_knows_its_streams(self) -> None:
        self.declare("by_name", by_name=True)
        self.declare("immutable", immutable=True)
        self.declare("get_rooms_for_user")  # by an expansion, and by rows of events
        self.declare("any", groups=("per_event",))
        self.declare("get_push_rules_for_user")
        self.declare("moved_user")
        self.declare("get_orders")
        self.declare("grouped", groups=("mine",))
        self.caches.expand(Expansion("moved", (Invalidates("moved_user", lambda k: [(k[0],)]),)))
        self.caches.on_rows("orders", Invalidates("get_orders", columns_key("customer")))
        self.caches.on_rows("events", Invalidates(Group("mine"), columns_key("room_id")), kind="ev")
        self.check()
        sources = {d.name: self.coherent.sources(d) for d in self.caches.declarations}
        expected: dict[str, set[str]] = {
            "by_name": {"caches"},
            "immutable": set(),
            "get_rooms_for_user": {"caches", "events"},
            "any": {"caches"},
            "get_push_rules_for_user": {"push_rules"},
            "moved_user": {"caches"},
            "get_orders": {"orders"},
            "grouped": {"events"},
        }
        self.assertEqual(sources, expected)

    def test_refuses_a_cache_whose_group_nothing_invalidates(self) -> None:
        self.declare("get_user", groups=("per_event_typo",))
        self.assertRaises(NeverInvalidated, self.check)

    def test_refuses_one_of_two_caches_with_the_same_name(self) -> None:
        self.declare("get_user")
        self.declare("get_user", by_name=True)
        self.assertRaises(NeverInvalidated, self.check)

    def test_refuses_caches_that_are_opened_after_the_check(self) -> None:
        self.check(["caches"])
        self.declare("good", by_name=True)("a")
        self.assertRaises(NeverInvalidated, self.declare("never"), "a")
        self.assertRaises(NotFollowed, self.declare("get_push_rules_for_user"), "a")
        self.assertEqual(self.caches.named("never"), ())

    def test_refuses_a_cache_whose_stream_is_not_followed(self) -> None:
        self.declare("get_rooms_for_user")
        for followed, missing in ((["events"], "caches"), (["caches"], "events"), ([], "caches")):
            with self.assertRaises(NotFollowed) as raised:
                self.check(followed)
            self.assertIn(f"rows of stream {missing!r} make cache", str(raised.exception))
        self.check(["caches", "events"])

    def test_refuses_an_invalid_declaration(self) -> None:
        self.declare("get_user", by_name=True, max_entries=0)
        self.assertRaises(BadCache, self.check)

    def test_refuses_effects_of_rows_that_do_not_exist(self) -> None:
        for stream, kind in (("order", ""), ("orders", "ev"), ("events", ""), ("events", "typo")):
            self.setUp()
            self.caches.on_rows(stream, Invalidates("get", columns_key("customer")), kind=kind)
            with self.assertRaisesRegex(NoSuchRows, f"stream '{stream}' .kind '{kind}'."):
                self.check()


class ApplyingRows(CoherenceCase):
    def test_rows_of_the_caches_stream_invalidate_by_name(self) -> None:
        self.filled("get_user", ("@a",), ("@b",), ("@c",))
        self.filled("other", ("@a",))
        self.start()
        self.apply("caches", 1, named("get_user", "@a"), named("get_user", "@b"))
        self.assertEqual(self.left("get_user"), [("@c",)])
        self.apply("caches", 2, whole("get_user"))
        self.assertEqual((self.left("get_user"), self.left("other")), ([], [("@a",)]))
        self.assertEqual(self.coherent.invalidations, {"get_user": 3})

    def test_counts_and_ignores_unknown_names(self) -> None:
        self.declare("declared")  # and never used
        self.start()
        self.apply("caches", 1, named("get_user", "@a"), whole("get_user"), named("declared", "@a"))
        self.assertEqual((self.coherent.unknown, self.coherent.invalidations), (2, {"declared": 1}))

    def test_an_expansion_invalidates_several_caches(self) -> None:
        self.filled("is_host_joined", ("!r", "x"), ("!r", "y"), ("!s", "x"))
        self.filled("get_users_in_room", ("!r",), ("!s",))
        self.filled("does_pair_of_users_share_a_room", ("@a:x", "@b:y"))
        self.filled("get_rooms_for_user", ("@a:x",), ("@b:y",))
        self.filled("get_room_summary", ("!r",), ("!s",))
        self.start()
        self.apply("caches", 1, named("cs_cache_fake", "!r", "@a:x"))
        self.assertEqual(self.left("is_host_joined"), [("!r", "y"), ("!s", "x")])
        self.assertEqual(self.left("get_users_in_room"), [("!s",)])
        self.assertEqual(self.left("does_pair_of_users_share_a_room"), [])
        self.assertEqual(self.left("get_rooms_for_user"), [("@b:y",)])
        self.assertEqual(self.left("get_room_summary"), [("!s",)])
        self.apply("caches", 2, named("cs_cache_fake", "!s"))
        self.assertEqual(self.left("get_room_summary"), [])
        self.assertEqual(self.left("get_users_in_room"), [("!s",)])  # nobody joined or left
        self.assertEqual(self.coherent.invalidations, {"cs_cache_fake": 2})

    def test_an_expansion_invalidates_groups_of_caches(self) -> None:
        self.filled("get_event", ("$e",), groups=("per_event",))
        self.filled("get_aliases", ("!r",), ("!s",), groups=("per_room",))
        self.filled("by_room_and_user", ("!r", "@a"), ("!s", "@a"), groups=("per_room",), tree=True)
        self.start()
        self.apply("caches", 1, named("ph_cache_fake", "!r"))
        self.assertEqual((self.left("get_event"), len(self.left("get_aliases"))), ([], 2))
        self.apply("caches", 2, named("dr_cache_fake", "!r"))
        self.assertEqual(self.left("get_aliases"), [("!s",)])
        self.assertEqual(self.left("by_room_and_user"), [("!s", "@a")])

    def test_bad_keys_clear_every_cache_that_they_could_mean(self) -> None:
        self.filled("get_rooms_for_user", ("@a:x",))
        self.filled("get_user", ("@a:x",))
        self.start()
        index = self.caches.index("caches", "membership")
        for token, bad in enumerate((None, [], [["!r"]], ["!r", {"a": 1}]), 1):
            self.apply("caches", token, CachesRow("cs_cache_fake", bad, 1))
            self.assertEqual(index.horizon, token)
        self.assertEqual(
            (self.left("get_rooms_for_user"), self.left("get_user")), ([], [("@a:x",)])
        )
        self.assertEqual((self.coherent.bad, len(self.warnings)), (4, 1))
        self.assertIn("'cs_cache_fake' needs a list of at least 1 strings", self.warnings[0])

    def test_unusable_keys_clear_the_named_cache(self) -> None:
        self.filled("get_user", ("@a",))
        self.start()
        self.apply("caches", 1, named("get_user", ["@a"]))
        self.assertEqual(self.left("get_user"), [])

    def test_rows_of_other_streams_invalidate_what_they_affect(self) -> None:
        self.filled("get_push_rules_for_user", ("@a",), ("@b",))
        self.filled("get_latest_event_ids_in_room", ("!r",), ("!s",))
        self.filled("get_rooms_for_user", ("@a:x",), ("@b:y",))
        self.start()
        self.apply("push_rules", 5, PushRulesRow("@a"))
        self.assertEqual(self.left("get_push_rules_for_user"), [("@b",)])
        self.apply("events", 5, EventRow("$e", "!r", "m.room.message", None, None, None))
        self.assertEqual(self.left("get_latest_event_ids_in_room"), [("!s",)])
        self.apply("events", 6, StateRow("!r", "m.room.member", "@a:x", "$e"))
        self.assertEqual(self.left("get_rooms_for_user"), [("@b:y",)])
        self.apply("events", 7, AllStateRow("!r"))
        self.assertEqual(self.left("get_rooms_for_user"), [])

    def test_applies_effects_and_expansions_declared_by_users(self) -> None:
        self.caches.on_rows("orders", Invalidates("get_order", columns_key("customer")))
        self.caches.on_rows("orders", Marks("customers", entity("customer")))
        self.caches.on_rows("caches", Invalidates("seen", columns_key("cache_func")))
        self.caches.expand(
            Expansion("moved", (Invalidates("moved_user", lambda keys: [(keys[0],)]),))
        )
        self.filled("get_order", ("c1",), ("c2",))
        self.filled("moved_user", ("@a",), ("@b",))
        self.filled("seen", ("get_user",), ("else",))
        customers = self.caches.index("orders", "customers")
        self.start()
        self.coherent.check()
        self.apply("orders", 9, OrderRow("c1"))
        self.assertEqual(self.left("get_order"), [("c2",)])
        self.assertEqual(
            (customers.has_changed("c1", 8), customers.has_changed("c2", 8)), (YES, NO)
        )
        self.apply("caches", 1, named("moved", "@a"), named("get_user", "@a"))
        self.assertEqual((self.left("moved_user"), self.left("seen")), ([("@b",)], [("else",)]))

    def test_applies_declarations_made_after_the_start(self) -> None:
        """Handlers may declare caches when they start; existing entries may be stale by then."""
        self.start()
        self.coherent.check()
        self.filled("get_order", ("c1",), ("c2",), by_name=True)
        self.filled("moved_user", ("@a",), ("@b",), by_name=True)
        self.caches.on_rows("orders", Invalidates("get_order", columns_key("customer")))
        self.caches.expand(Expansion("moved", (Invalidates("moved_user", lambda keys: [keys]),)))
        self.assertIsNotNone(self.coherent.expansion("moved"))
        self.assertEqual((self.left("get_order"), self.left("moved_user")), ([], []))
        for name, key in (("get_order", "c1"), ("get_order", "c2"), ("moved_user", "@a")):
            self.declare(name, by_name=True)(key)
        self.apply("orders", 1, OrderRow("c1"))
        self.apply("caches", 1, named("moved", "@a"))
        held = [list(cache.entries) for cache in self.caches if cache.entries]
        self.assertEqual(held, [[("c2",)]])
        with self.assertRaises(NoSuchRows):
            self.caches.on_rows("order", Invalidates("get_order", columns_key("customer")))

    def test_a_failing_function_clears_its_cache_and_is_logged_without_secrets(self) -> None:
        """The caller gets no error, which would stop the stream forever."""

        def fails(source: Any) -> Any:
            raise KeyError("a secret of the row")

        def fails_later(source: Any) -> Any:
            yield ("nobody",)
            fails(source)

        customers = self.caches.index("orders", "customers")
        self.caches.on_rows(
            "orders", Invalidates("get_order", fails_later), Marks("customers", fails)
        )
        self.caches.expand(Expansion("moved", (Invalidates("moved_user", fails),)))
        self.filled("get_order", ("c1",))
        self.filled("moved_user", ("@a",))
        self.filled("other", ("@a",))
        self.start()
        for token in (4, 5):
            self.apply("orders", token, OrderRow("c1"))
            self.apply("caches", token, named("moved", "@a"))
        self.assertEqual((self.left("get_order"), self.left("moved_user")), ([], []))
        self.assertEqual((customers.horizon, self.left("other")), (5, [("@a",)]))
        self.assertEqual((self.coherent.bad, len(self.warnings)), (4, 2))
        self.assertIn("a row of orders is not understood (KeyError)", self.warnings[0])
        self.assertIn("a row that names moved is not understood", self.warnings[1])
        self.assertNotIn("secret", str(self.warnings))

    def test_keys_of_the_wrong_type_clear_the_cache(self) -> None:
        """A string instead of a tuple with one string is an easy mistake."""
        self.caches.on_rows("orders", Invalidates("get_order", lambda row: (row.customer,)))
        self.filled("get_order", ("c1",), ("c2",))
        self.start()
        self.apply("orders", 1, OrderRow("c1"))
        self.assertEqual(self.left("get_order"), [])


class LosingFacts(CoherenceCase):
    def test_losing_facts_of_the_caches_stream_clears_every_mutable_cache(self) -> None:
        self.filled("get_user", ("@a",))
        self.filled("get_push_rules_for_user", ("@a",))
        self.filled("fixed", ("@a",), immutable=True)
        index = self.caches.index("caches", "membership")
        self.start()
        self.coherent.reset("caches", "master", 10)
        self.assertEqual((self.left("get_user"), self.left("get_push_rules_for_user")), ([], []))
        self.assertEqual((self.left("fixed"), index.horizon), ([("@a",)], 10))
        self.assertEqual(self.coherent.emptied, 1)
        (warning,) = self.warnings
        self.assertIn("rows of caches up to 10 are lost", warning)

    def test_losing_facts_of_another_stream_clears_what_it_affects(self) -> None:
        self.filled("get_user", ("@a",), by_name=True)
        self.filled("get_push_rules_for_user", ("@a",))
        index = self.caches.index("push_rules", "push_rules")
        self.start()
        self.coherent.reset("push_rules", "master", 10)
        self.assertEqual(self.left("get_push_rules_for_user"), [])
        self.assertEqual((self.left("get_user"), index.horizon), ([("@a",)], 10))
        self.assertEqual(self.coherent.emptied, 1)

    def test_a_writer_that_starts_again_at_zero_clears_what_it_affects(self) -> None:
        """Its last facts before it was lost may never have arrived."""
        self.filled("get_push_rules_for_user", ("@a",))
        self.start()
        self.apply("push_rules", 9, PushRulesRow("@b"))
        self.coherent.reset("push_rules", "master", 0)
        self.assertEqual(self.left("get_push_rules_for_user"), [])

    def test_losing_facts_of_a_stream_without_effects_clears_nothing(self) -> None:
        self.filled("get_user", ("@a",))
        self.start()
        self.coherent.reset("orders", "master", 10)
        self.assertEqual((self.coherent.emptied, self.warnings), (0, []))
        self.assertEqual(self.left("get_user"), [("@a",)])

    def test_the_first_position_of_a_writer_clears_what_was_loaded_before_it(self) -> None:
        """Entries loaded before the first position is known may be older than it."""
        self.filled("get_user", ("@a",), by_name=True)
        self.filled("get_push_rules_for_user", ("@a",))
        self.coherence().begin("push_rules", "master", 7)
        self.assertEqual(
            (self.left("get_user"), self.left("get_push_rules_for_user")), ([("@a",)], [])
        )
        self.coherent.begin("caches", "master", 7)
        self.assertEqual(self.left("get_user"), [])
        self.filled("get_rooms_for_user", ("@a",))
        self.coherent.begin("caches", "master", 9)
        self.assertEqual(self.left("get_rooms_for_user"), [("@a",)])
        self.assertEqual((self.coherent.emptied, self.warnings), (0, []))

    def test_clears_caches_when_a_legacy_master_omits_a_fact(self) -> None:
        """A legacy master skips facts that no line can carry; only the tokens show it."""
        self.filled("get_user", ("@a",), ("@b",))
        self.coherent = Coherence(self.caches, CATALOGUE, self.log, may_omit_facts=True)
        self.coherent.begin("caches", "", 0)
        self.apply("caches", 1, named("get_user", "@c"), writer="")
        self.assertEqual(self.left("get_user"), [("@a",), ("@b",)])
        self.coherent.apply("caches", "", 1, [Fact(3, "", (named("get_user", "@c"),))])
        self.assertEqual(self.left("get_user"), [])

    def test_suspected_rows_invalidate_entries_but_mark_no_index(self) -> None:
        """The token of rows that may have been committed is unknown, so they mark no index."""
        self.filled("get_user", ("@a",), ("@b",))
        self.filled("get_push_rules_for_user", ("@a",), ("@b",))
        index = self.caches.index("push_rules", "push_rules")
        self.coherence().suspect("caches", [named("get_user", "@a")])
        self.coherent.suspect("push_rules", [PushRulesRow("@a")])
        self.assertEqual(self.left("get_user"), [("@b",)])
        self.assertEqual(self.left("get_push_rules_for_user"), [("@b",)])
        self.assertEqual(index.has_changed("@b", 5), MAYBE)  # nothing was ever known
        self.assertEqual(list(self.coherent.moments), [])
        self.apply("push_rules", 7, PushRulesRow("@a"))
        self.assertEqual((index.has_changed("@a", 6), index.has_changed("@b", 6)), (YES, NO))


class ChangeIndexes(CoherenceCase):
    def setUp(self) -> None:
        super().setUp()
        self.coherence()

    def index(self, stream: str = "push_rules", name: str = "push_rules") -> ChangeIndex:
        return self.caches.index(stream, name)

    def test_rows_of_the_caches_stream_mark_indexes(self) -> None:
        rooms, members = self.index("caches", "room_state"), self.index("caches", "membership")
        self.coherent.begin("caches", "master", 10)
        self.apply("caches", 11, named("cs_cache_fake", "!r", "@a:x"))
        self.apply("caches", 12, named("cs_cache_fake", "!s"))
        self.assertEqual(rooms.all_since(10), ["!r", "!s"])
        self.assertEqual((rooms.has_changed("!r", 11), members.all_since(10)), (NO, ["@a:x"]))

    def test_rows_mark_indexes_in_the_tokens_of_their_stream(self) -> None:
        rooms = self.index("events", "room_state")
        self.coherent.begin("events", "master", 100)
        self.apply("events", 101, StateRow("!r", "m.room.name", "", None))
        self.apply("events", 102, AllStateRow("!s"))
        self.assertEqual(rooms.all_since(100), ["!r", "!s"])

    def test_a_row_without_an_entity_marks_everything_as_changed(self) -> None:
        members = self.index("events", "membership")
        self.coherent.begin("events", "master", 100)
        self.apply("events", 102, AllStateRow("!s"))
        self.assertEqual(
            (members.has_changed("@a", 101), members.has_changed("@a", 102)), (MAYBE, NO)
        )

    def test_an_index_begins_at_the_first_position(self) -> None:
        index = self.index()
        self.assertEqual(index.has_changed("@a", 50), MAYBE)
        self.coherent.begin("push_rules", "master", 10)
        self.assertEqual((index.has_changed("@a", 9), index.has_changed("@a", 10)), (MAYBE, NO))
        self.coherent.begin("push_rules", "master", 20)  # once is enough
        self.assertEqual(index.horizon, 10)

    def test_an_index_that_begins_at_zero_knows_everything(self) -> None:
        index = self.index()
        self.coherent.begin("push_rules", "master", 0)
        self.assertEqual(index.has_changed("@a", 0), NO)

    def test_a_new_writer_raises_the_horizon_to_its_first_position(self) -> None:
        """Nothing is known of its earlier facts."""
        index = self.index()
        self.coherent.begin("push_rules", "master", 10)
        self.apply("push_rules", 15, PushRulesRow("@a"))
        self.apply("push_rules", 13, PushRulesRow("@b"), writer="other")  # after 12
        self.assertEqual(index.horizon, 12)
        self.assertEqual(index.all_since(12), ["@b", "@a"])

    def test_an_index_made_later_begins_at_the_position_reached(self) -> None:
        self.coherent.begin("push_rules", "master", 10)
        self.apply("push_rules", 15, PushRulesRow("@a"))
        index = self.index()
        self.assertEqual(index.has_changed("@a", 15), MAYBE)
        self.apply("push_rules", 17, PushRulesRow("@b"))
        self.assertEqual((index.horizon, index.all_since(15)), (15, ["@b"]))

    def test_an_index_made_before_its_stream_begins_with_the_stream(self) -> None:
        self.coherent.begin("push_rules", "master", 10)
        orders = self.index("orders", "customers")
        self.apply("push_rules", 15, PushRulesRow("@a"))
        self.assertIsNone(orders.horizon)
        self.coherent.begin("orders", "master", 3)
        self.assertEqual(orders.horizon, 3)

    def test_an_index_made_after_unordered_rows_begins_at_their_largest_token(self) -> None:
        """The largest token counts, not the last one."""
        burst = [
            Fact(token, "master", (named("cs_cache_fake", f"!{token}"),)) for token in (16, 15, 14)
        ]
        self.coherent.apply("caches", "master", 10, burst)
        rooms = self.index("caches", "room_state")
        self.apply("caches", 17, named("cs_cache_fake", "!17"))
        self.assertEqual((rooms.horizon, rooms.has_changed("!16", 15)), (16, MAYBE))

    def test_unordered_and_repeated_rows_are_marked_once(self) -> None:
        rooms = self.index("caches", "room_state")
        burst = [
            Fact(token, "master", (named("cs_cache_fake", f"!{token}"),)) for token in (16, 15, 14)
        ]
        self.coherent.apply("caches", "master", 10, burst)
        self.coherent.apply("caches", "master", 16, burst)  # they may come twice
        self.assertEqual(rooms.all_since(10), ["!14", "!15", "!16"])

    def test_streams_that_share_a_sequence_share_an_index(self) -> None:
        index = self.index("account_data", "account_data")
        self.coherent.begin("account_data", "master", 5)
        self.coherent.begin("tag_account_data", "master", 7)
        self.apply("account_data", 8, AccountDataRow("@a", None, "m.direct"))
        self.apply("tag_account_data", 9, TagAccountDataRow("@b", "!r", {}))
        self.assertEqual((index.horizon, index.all_since(7)), (7, ["@a", "@b"]))


class RecordingMoments(CoherenceCase):
    def test_records_where_each_writer_was_when_caches_could_change(self) -> None:
        get = self.declare("get_user", by_name=True)
        self.start()
        get("before")
        self.apply("caches", 5, named("get_user", "@a"))
        self.apply("orders", 9, OrderRow("c1"))  # concerns no cache
        get("between")
        self.apply("push_rules", 7, PushRulesRow("@a"), writer="other")
        other = ("push_rules", "other")  # which begins at 6
        moments = [tuple(moment) for moment in self.coherent.moments]
        self.assertEqual(moments, [(1, "caches", "master", 5), (2, *other, 6), (3, *other, 7)])
        (cache,) = self.caches.named("get_user")
        moments = [cache.entries[key,].moment for key in ("before", "between")]
        self.assertEqual((moments, self.caches.moment), ([0, 1], 3))

    def test_keeps_a_bounded_number_of_moments(self) -> None:
        self.start()
        for token in range(1, MOMENTS + 10):
            self.apply("caches", token, named("nothing", "@a"))
        self.assertEqual(len(self.coherent.moments), MOMENTS)
        self.assertEqual(self.coherent.moments[-1].number, MOMENTS + 9)

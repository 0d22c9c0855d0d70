"""The search for the row that should have invalidated a stale cache entry."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Any

from synrepl.caches.entries import Entry
from synrepl.caches.registry import Caches
from synrepl.services.sources import LINEAR
from synrepl.streams.definition import Fact
from synrepl.streams.effects import Expansion, Invalidates, Key, columns_key
from synrepl.streams.row import Row
from synrepl.streams.synapse.caches import CACHES, CachesRow
from synrepl.streams.synapse.events import StateRow
from synrepl.tools.audit import missed_rows
from synrepl.tools.audit.missed_rows import EntryPositions
from synrepl.tools.audit.sample import EntryLocation
from tests.services.world import done
from tests.tools.audit_fixtures import JOBS, AuditCase


class MissedRowSearch(AuditCase):
    """The row that should have invalidated a stale entry."""

    def audit_stale(self, name: str = "name_of") -> dict[str, Any]:
        (found,) = self.process.audit()["stale"]
        self.assertEqual(found["cache"], name)
        entry: dict[str, Any] = found
        return entry

    def stale_after(self, *rows: Any) -> dict[str, Any]:
        """The stale entry after rows were applied without dropping it."""
        self.process.commit_as_master(self.process.invalidation(("z",)))
        moment = self.process.caches.moment
        for row in rows:
            self.process.commit_as_other(row)
        self.process.poll()
        self.process.commit_as_master(self.process.invalidation(("y",)))
        self.store_outdated("a", "old", moment)
        return self.audit_stale()

    def test_finds_the_row_that_names_the_entry(self) -> None:
        for row in (self.process.invalidation(("a",)), self.process.invalidation(None)):
            found = self.stale_after(
                self.process.invalidation(("b",)), row, self.process.invalidation(("c",))
            )
            at = found["row"]["token"]
            self.assertEqual(
                found["row"],
                {"stream": "caches", "writer": "other", "token": at, "after_load": True},
            )
            self.assertEqual(
                found["expected"],
                f"row {at} of 'other' in 'caches' names it and was applied, yet the entry stayed",
            )
            self.assertEqual(
                found["positions"]["caches"]["master"], {"at_load": at - 2, "now": at + 2}
            )

    def test_ignores_rows_from_before_the_load(self) -> None:
        self.process.commit_as_other(self.process.invalidation(("a",)))
        self.process.commit_as_other(self.process.invalidation(("a",)))
        self.process.poll()
        self.process.name_of("a")
        self.process.commit_as_other(self.process.invalidation(("b",)))
        self.process.poll()
        self.process.data["a"] = 2
        found = self.audit_stale()
        self.assertEqual((found["row"], found["searched_all"]), (None, True))
        self.assertEqual(found["positions"]["caches"]["other"], {"at_load": 2, "now": 3})

    def test_reports_if_the_load_position_is_forgotten(self) -> None:
        self.process.coherence.moments = deque(maxlen=2)
        for key in "axy":
            self.process.commit_as_master(self.process.invalidation((key,)))
        self.store_outdated("a", "old", 0)
        found = self.audit_stale()
        self.assertEqual(found["row"]["after_load"], False)
        self.assertEqual(found["positions"]["caches"]["master"], {"at_load": None, "now": 3})
        self.assertIn("row 1 of 'master' in 'caches' names it; whether", found["expected"])

    def test_ignores_rows_that_are_not_applied_yet(self) -> None:
        """A row is committed during the search."""
        process = self.process
        ((token,),) = process.start(process.other.reserve(CACHES, 1, 0))
        late = [Fact(token, "other", (process.invalidation(("a",)),))]

        async def step(what: str) -> None:
            if what == "page" and late:
                await process.other.write(CACHES, [late.pop()])

        process.store.step = step  # type: ignore[method-assign]
        process.data["a"] = 2
        found = self.audit_stale()
        self.assertEqual((late, found["searched"], found["row"]), ([], {"caches": [0, 1]}, None))

    def test_finds_rows_by_expansions_effects_and_key_prefixes(self) -> None:
        def more(caches: Caches) -> None:
            caches.expand(
                Expansion("pair", (Invalidates("tree", lambda keys: [(keys[0],)]),), least=1)
            )
            caches.on_rows("jobs", Invalidates("tree", columns_key("job_id")))
            self.tree = caches.cached(name="tree", tree=True)(lambda a, b: self.process.data[a])
            self.members = caches.cached(name="get_users_in_room")(
                lambda room: self.process.data[room]
            )

        job = JOBS.kinds[""]
        cases: tuple[tuple[Key, str, Row, Row], ...] = (
            ((1, 2), "tree", CachesRow("pair", [1], 0), CachesRow("pair", [2], 0)),
            ((1, 2), "tree", job(1), job(2)),
            (
                ("!r",),
                "get_users_in_room",
                StateRow("!r", "m.room.member", "@u:x", "$e"),
                StateRow("!r", "m.room.topic", "", "$e"),
            ),
            (
                ("!r",),
                "get_users_in_room",
                CachesRow("cs_cache_fake", ["!r", "@u:x"], 0),
                CachesRow("cs_cache_fake", ["!r"], 0),
            ),
        )
        for call, name, row, other in cases:
            with self.subTest(row):
                self.process = self.new_process(more)
                self.process.data.update({1: "old", "!r": "old"})
                cached = self.tree if name == "tree" else self.members
                cached(*call)
                self.process.commit_as_other(row)
                self.process.commit_as_other(other)
                self.process.poll()
                cache = self.process.cache(name)
                self.assertTrue(cache.entries.store(call, Entry("older", inf, 0)))
                found = self.audit_stale(name)
                self.assertEqual(found["row"]["token"], 1)

    def test_searches_a_limited_number_of_tokens(self) -> None:
        self.patch_bound("MOST_TOKENS", 3)
        for key in "axyz":
            self.process.commit_as_master(self.process.invalidation((key,)))
        self.store_outdated("a", "old", 0)
        found = self.audit_stale()
        self.assertIsNone(found["row"])
        self.assertEqual(found["searched"], {"caches": [1, 4]})
        self.assertEqual(
            found["expected"],
            "no row of 'caches' above 1 up to 4 names it; others have been trimmed, or were too "
            "many to look at",
        )

    def test_searches_a_limited_number_of_rows(self) -> None:
        self.patch_bound("MOST_ROWS", 2)
        for key in "xyza":
            self.process.commit_as_master(self.process.invalidation((key,)))
        self.store_outdated("a", "old", 0)
        found = self.audit_stale()
        self.assertEqual((found["searched"], found["searched_all"]), ({"caches": [0, 2]}, False))

    def test_searches_only_rows_that_are_not_trimmed(self) -> None:
        for key in "axyz":
            self.process.commit_as_master(self.process.invalidation((key,)))
        self.process.clock.advance(1)  # positions are recorded
        trim = self.process.start(self.process.store.trim(CACHES, 4, 0, 2))
        self.assertEqual(trim[0].upto, 2)
        self.store_outdated("a", "old", 0)
        found = self.audit_stale()
        self.assertEqual((found["searched"], found["searched_all"]), ({"caches": [2, 4]}, False))

    def patch_bound(self, name: str, value: int) -> None:
        before = getattr(missed_rows, name)
        setattr(missed_rows, name, value)
        self.addCleanup(setattr, missed_rows, name, before)

    def test_finds_rows_by_linear_and_writer_positions(self) -> None:
        """One position may stand for all writers, or each writer has its own."""
        for _ in range(3):
            self.process.commit_as_other(self.process.invalidation(("x",)))
        self.process.commit_as_master(self.process.invalidation(("x",)))
        place = EntryLocation(self.process.cache(), ("x",))
        seen = done(self.process.store.observe([CACHES]))
        for at_load, now, row in ((3, 4, 4), (None, 2, 2), (4, 4, None), (0, 0, None)):
            positions = {"caches": {LINEAR: EntryPositions(at_load, now)}}
            found = done(self.process.rows.find(place, positions, seen)).row
            self.assertEqual(None if found is None else found.token, row)
        positions = {"caches": {"other": EntryPositions(None, 3), "master": EntryPositions(0, 4)}}
        found = done(self.process.rows.find(place, positions, seen)).row
        self.assertEqual(
            found, ("caches", "master", 4, True)
        )  # a row known to be after the load is preferred

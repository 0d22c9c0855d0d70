"""Which row should have made a stale cache entry go."""

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
from tests.tools.audited import JOBS, Base


class WhatShouldHaveCome(Base):
    """The row that names a stale entry."""

    def stale(self, name: str = "name_of") -> dict[str, Any]:
        (found,) = self.world.audit()["stale"]
        self.assertEqual(found["cache"], name)
        told: dict[str, Any] = found
        return told

    def named_by(self, *rows: Any) -> dict[str, Any]:
        """Rows are applied, and the entry stays nevertheless."""
        self.world.by_master(self.world.stale_row(("z",)))
        moment = self.world.caches.moment
        for row in rows:
            self.world.by_other(row)
        self.world.look()
        self.world.by_master(self.world.stale_row(("y",)))
        self.keep("a", "old", moment)
        return self.stale()

    def test_found(self) -> None:
        for row in (self.world.stale_row(("a",)), self.world.stale_row(None)):
            found = self.named_by(self.world.stale_row(("b",)), row, self.world.stale_row(("c",)))
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

    def test_rows_from_before_the_load_do_not_count(self) -> None:
        self.world.by_other(self.world.stale_row(("a",)))
        self.world.by_other(self.world.stale_row(("a",)))
        self.world.look()
        self.world.name_of("a")
        self.world.by_other(self.world.stale_row(("b",)))
        self.world.look()
        self.world.data["a"] = 2
        found = self.stale()
        self.assertEqual((found["row"], found["searched_all"]), (None, True))
        self.assertEqual(found["positions"]["caches"]["other"], {"at_load": 2, "now": 3})

    def test_not_remembered(self) -> None:
        self.world.coherence.moments = deque(maxlen=2)
        for key in "axy":
            self.world.by_master(self.world.stale_row((key,)))
        self.keep("a", "old", 0)
        found = self.stale()
        self.assertEqual(found["row"]["after_load"], False)
        self.assertEqual(found["positions"]["caches"]["master"], {"at_load": None, "now": 3})
        self.assertIn("row 1 of 'master' in 'caches' names it; whether", found["expected"])

    def test_rows_that_are_not_applied_yet_are_not_blamed(self) -> None:
        """One is committed while the rows are looked through."""
        world = self.world
        ((token,),) = world.start(world.other.reserve(CACHES, 1, 0))
        late = [Fact(token, "other", (world.stale_row(("a",)),))]

        async def step(what: str) -> None:
            if what == "page" and late:
                await world.other.write(CACHES, [late.pop()])

        world.store.step = step  # type: ignore[method-assign]
        world.data["a"] = 2
        found = self.stale()
        self.assertEqual((late, found["searched"], found["row"]), ([], {"caches": [0, 1]}, None))

    def test_expansions_effects_and_parts_of_keys(self) -> None:
        def more(caches: Caches) -> None:
            caches.expand(
                Expansion("pair", (Invalidates("tree", lambda keys: [(keys[0],)]),), least=1)
            )
            caches.on_rows("jobs", Invalidates("tree", columns_key("job_id")))
            self.tree = caches.cached(name="tree", tree=True)(lambda a, b: self.world.data[a])
            self.members = caches.cached(name="get_users_in_room")(
                lambda room: self.world.data[room]
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
                self.world = self.begin(more)
                self.world.data.update({1: "old", "!r": "old"})
                cached = self.tree if name == "tree" else self.members
                cached(*call)
                self.world.by_other(row)
                self.world.by_other(other)
                self.world.look()
                cache = self.world.cache(name)
                self.assertTrue(cache.entries.store(call, Entry("older", inf, 0)))
                found = self.stale(name)
                self.assertEqual(found["row"]["token"], 1)

    def test_bounded(self) -> None:
        self.patch_bound("MOST_TOKENS", 3)
        for key in "axyz":
            self.world.by_master(self.world.stale_row((key,)))
        self.keep("a", "old", 0)
        found = self.stale()
        self.assertIsNone(found["row"])
        self.assertEqual(found["searched"], {"caches": [1, 4]})
        self.assertEqual(
            found["expected"],
            "no row of 'caches' above 1 up to 4 names it; others have been trimmed, or were too "
            "many to look at",
        )

    def test_few_rows(self) -> None:
        self.patch_bound("MOST_ROWS", 2)
        self.patch_bound("_PAGE_ROWS", 1)
        for key in "xyza":
            self.world.by_master(self.world.stale_row((key,)))
        self.keep("a", "old", 0)
        found = self.stale()
        self.assertEqual((found["searched"], found["searched_all"]), ({"caches": [0, 2]}, False))

    def test_trimmed(self) -> None:
        for key in "axyz":
            self.world.by_master(self.world.stale_row((key,)))
        self.world.clock.advance(1)  # positions go on record
        trim = self.world.start(self.world.store.trim(CACHES, 4, 0, 2))
        self.assertEqual(trim[0].upto, 2)
        self.keep("a", "old", 0)
        found = self.stale()
        self.assertEqual((found["searched"], found["searched_all"]), ({"caches": [2, 4]}, False))

    def patch_bound(self, name: str, value: int) -> None:
        before = getattr(missed_rows, name)
        setattr(missed_rows, name, value)
        self.addCleanup(setattr, missed_rows, name, before)

    def test_views(self) -> None:
        """One position stands for all writers, or each writer has its own."""
        for _ in range(3):
            self.world.by_other(self.world.stale_row(("x",)))
        self.world.by_master(self.world.stale_row(("x",)))
        place = EntryLocation(self.world.cache(), ("x",))
        seen = done(self.world.store.observe([CACHES]))
        for at_load, now, row in ((3, 4, 4), (None, 2, 2), (4, 4, None), (0, 0, None)):
            positions = {"caches": {LINEAR: EntryPositions(at_load, now)}}
            found = done(self.world.rows.find(place, positions, seen)).row
            self.assertEqual(None if found is None else found.token, row)
        positions = {"caches": {"other": EntryPositions(None, 3), "master": EntryPositions(0, 4)}}
        found = done(self.world.rows.find(place, positions, seen)).row
        self.assertEqual(found, ("caches", "master", 4, True))  # what is certain counts more

"""Auditing caches: what is stale, what is only on its way, and what should have come."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from synrepl.caches.cache import Declaration
from synrepl.caches.registry import Caches
from synrepl.streams.synapse.caches import CACHES
from synrepl.tools.audit.audit import AUDIT_S, WAIT_S, AuditInProgress
from synrepl.tools.audit.fresh_loads import LOAD_S
from synrepl.tools.audit.report import MOST_STALE
from synrepl.tools.audit.sample import EntryLocation
from tests.tools.audited import SECRET, Audited, Base, brief


class Verdicts(Base):
    """What becomes of an entry."""

    def test_coherent(self) -> None:
        before, counts = list(self.world.cache().entries.items()), self.world.cache().counts()
        self.assertEqual(brief(self.world.audit()), {"checked": 3, "coherent": 3})
        self.assertEqual(self.world.loads, 6)
        self.assertEqual(self.world.cache().counts(), counts)
        self.assertEqual(list(self.world.cache().entries.items()), before)
        self.assertEqual(
            self.world.auditor.counts, {"audited": {"name_of": 3}, "incoherent": {"name_of": 0}}
        )

    def test_an_audited_entry_is_not_one_that_was_used(self) -> None:
        self.world.audit()
        self.world.cache().entries.popitem()
        self.assertNotIn(("a",), self.world.cache().entries)
        EntryLocation(self.world.cache(), ("b",)).entry(0)
        self.world.cache().entries.popitem()
        self.assertNotIn(("b",), self.world.cache().entries)

    def test_nothing_to_check(self) -> None:
        self.assertEqual(brief(self.begin().audit()), {})

    def test_stale(self) -> None:
        self.world.data["b"] = {"secret": SECRET, "more": 1}
        report = self.world.audit()
        self.assertEqual(brief(report), {"checked": 3, "coherent": 2, "incoherent": 1})
        (found,) = report["stale"]
        self.assertEqual(
            found,
            {
                "cache": "name_of",
                "key": ["b"],
                "held": "dict of 1",
                "loaded": "dict of 2",
                "positions": {
                    "caches": {
                        "master": {"at_load": 0, "now": 0},
                        "other": {"at_load": 0, "now": 0},
                    }
                },
                "searched": {"caches": [0, 0]},
                "searched_all": True,
                "row": None,
                "expected": "no row of 'caches' above 0 up to 0 names it: "
                "the change was committed without an invalidation",
            },
        )
        self.assertEqual(
            self.world.log.lines,
            [
                (
                    "warn",
                    "an entry of cache name_of was stale, and is dropped: key ['b']: "
                    + found["expected"],
                )
            ],
        )
        self.assertIsNone(self.world.entry(("b",)))
        self.assertEqual(self.world.auditor.incoherent, {"name_of": 1})
        self.assertEqual(self.world.name_of("b")["more"], 1)
        self.assertEqual(brief(self.world.audit()), {"checked": 3, "coherent": 3})
        self.assertNotIn(SECRET, json.dumps([report, self.world.log.lines]))

    def test_in_flight(self) -> None:
        """The row is committed with the change, and not announced yet."""
        self.world.data["a"] = 2
        self.world.by_other(self.world.stale_row(("a",)))
        ended = self.world.start(self.world.auditor.audit(100))
        self.world.clock.advance(0.1)
        self.assertEqual(ended, [])
        self.assertIsNotNone(self.world.entry(("a",)))
        self.world.clock.pump([1, 0, 0, 0, 0])
        (report,) = ended
        self.assertEqual(brief(report.to_json()), {"checked": 3, "coherent": 2, "in_flight": 1})
        self.assertEqual(self.world.auditor.incoherent, {})
        self.assertEqual(self.world.log.lines, [])

    def test_dropped_and_loaded_again_while_it_is_waited_for(self) -> None:
        self.world.data["a"] = 2
        self.world.by_other(self.world.stale_row(("a",)))
        ended = self.world.start(self.world.auditor.audit(100))
        self.world.clock.advance(0.1)
        self.world.by_master(self.world.stale_row(("a",)))
        self.world.name_of("a")
        self.world.data["a"] = 3  # the next change is under way already
        self.world.by_other(self.world.stale_row(("a",)))
        self.world.clock.pump([1, 0, 0, 0, 0])
        (report,) = ended
        self.assertEqual(brief(report.to_json())["in_flight"], 1)
        self.assertNotIn("incoherent", brief(report.to_json()))

    def test_behind(self) -> None:
        """Nobody knows what is behind a reservation of the same writer."""
        ended = self.world.start(self.world.other.reserve(CACHES, 1, 0))
        self.assertEqual(ended, [[1]])
        self.world.data["a"] = 2
        self.world.by_other(self.world.stale_row(("a",)))
        ended = self.world.start(self.world.auditor.audit(100))
        self.world.clock.pump([0.5] * int(2 * WAIT_S - 1))
        self.assertEqual(ended, [])
        self.world.clock.pump([0.5, 0, 0, 0])
        (report,) = ended
        self.assertEqual(brief(report.to_json()), {"checked": 3, "coherent": 2, "behind": 1})
        self.assertIsNotNone(self.world.entry(("a",)))
        self.assertEqual(self.world.auditor.audited, {"name_of": 2})

    def test_one_patience_for_all(self) -> None:
        self.world.start(self.world.other.reserve(CACHES, 1, 0))
        for key in "abc":
            self.world.data[key] = 2
        self.world.by_other(self.world.stale_row(("a",)))
        ended = self.world.start(self.world.auditor.audit(100))
        self.world.clock.pump([WAIT_S, 0, 0, 0, 0, 0, 0, 0])
        (report,) = ended
        self.assertEqual(brief(report.to_json()), {"checked": 3, "behind": 3})

    def test_expired_or_dropped_entries_are_not_looked_at(self) -> None:
        def more(caches: Caches) -> None:
            self.expiring: Any = caches.cached(by_name=True, ttl_s=5.0, name="expiring")(
                lambda key: self.world.data[key]
            )

        self.world = self.begin(more)
        self.world.data["a"] = 1
        self.expiring("a")
        self.world.data["a"] = 2
        self.world.clock.advance(5)
        self.assertEqual(brief(self.world.audit()), {})

    def test_immutable(self) -> None:
        def more(caches: Caches) -> None:
            self.fixed: Any = caches.cached(immutable=True, name="fixed")(
                lambda key: self.world.data[key]
            )

        self.world = self.begin(more)
        self.world.data["a"] = 1
        self.fixed("a")
        self.world.data["a"] = 2
        (found,) = self.world.audit()["stale"]
        self.assertEqual(
            (found["positions"], found["expected"]),
            ({}, "nothing ever invalidates it, yet what it is loaded from has changed"),
        )

    def test_odd_keys(self) -> None:
        def more(caches: Caches) -> None:
            self.odd: Any = caches.cached(by_name=True, name="odd")(lambda a, b: self.loaded)

        self.world, self.loaded = self.begin(more), 1
        keys = [("\ud800", "x" * 1000), (None, 2**80), (True, 10**5000), (1.5, -(2**63))]
        for key in keys:
            self.odd(*key)
        self.loaded = 2
        report = self.world.audit()
        self.assertEqual(len(report["stale"]), 4)
        self.assertEqual(
            [[str(part)[:20] for part in found["key"]] for found in report["stale"]][:2],
            [["\\ud800", "x" * 20], ["None", "0x100000000000000000"]],
        )
        self.assertEqual(self.world.cache("odd").counts()["size"], 0)

    def test_more_than_can_be_told(self) -> None:
        for key in range(MOST_STALE + 5):
            self.world.name_of(str(key))
            self.world.data[str(key)] = 1
        report = self.world.audit(1000)
        self.assertEqual((report["incoherent"], len(report["stale"])), (MOST_STALE + 5, MOST_STALE))
        self.assertEqual(len(self.world.log.lines), MOST_STALE + 1)
        self.assertIn("5 more", self.world.log.lines[-1][1])
        self.assertEqual(self.world.auditor.incoherent["name_of"], MOST_STALE + 5)

    def test_one_audit_at_a_time_but_the_sampler_goes_on(self) -> None:
        self.world.data["a"] = 2
        self.world.by_other(self.world.stale_row(("a",)))
        first = self.world.start(self.world.auditor.audit(100))
        (refused,) = self.world.start(self.world.auditor.audit(100))
        self.assertIsInstance(refused.value, AuditInProgress)
        self.world.data["b"] = self.world.data["c"] = 2
        samples = [self.world.start(self.world.auditor.audit_one()) for _ in range(9)]
        self.world.clock.pump([1, 0, 0, 0, 0, 0])
        self.assertTrue(first)
        self.assertTrue(all(samples))
        self.assertEqual(self.world.auditor.incoherent, {"name_of": 2})  # each found once

    def test_the_time_is_up(self) -> None:
        def more(caches: Caches) -> None:
            self.slow = caches.cached(by_name=True, name="slow")(self.load_slowly)

        self.world = self.begin(more)
        for key in range(20):
            self.slow(key)
        self.world.clock.advance(20)
        ended = self.world.start(self.world.auditor.audit(100))
        self.world.clock.pump([20, 0] * 20)
        (report,) = ended
        self.assertEqual(report.left, 20 - int(AUDIT_S // 20) - 1)
        self.assertEqual(report.verdicts.total(), int(AUDIT_S // 20) + 1)

    def test_slow_loads_cost_no_patience(self) -> None:
        def more(caches: Caches) -> None:
            self.slow = caches.cached(by_name=True, name="slow")(self.load_slowly)

        self.world = self.begin(more)
        self.slow(1)
        self.world.clock.advance(20)
        self.world.name_of("a")
        ended = self.world.start(self.world.auditor.audit(100))
        self.world.clock.advance(20 - 0.1)
        self.world.data["a"] = 2
        self.world.by_other(self.world.stale_row(("a",)))
        self.world.clock.pump([0.1, 0, 1, 0, 0, 0])
        (report,) = ended
        self.assertEqual(brief(report.to_json()), {"checked": 2, "coherent": 1, "in_flight": 1})

    def load_slowly(self, key: int) -> Deferred[int]:
        loading: Deferred[int] = Deferred()
        self.world.clock.callLater(20, loading.callback, 1)
        return loading


class Loads(Base):
    """Fresh loads, of every kind of function."""

    def begin_with(self, load: Callable[..., Any]) -> None:
        def more(caches: Caches) -> None:
            self.cached = caches.cached(by_name=True, name="cached")(load)

        self.world = self.begin(more)

    def test_deferred(self) -> None:
        def load(key: str) -> Deferred[Any]:
            loading: Deferred[Any] = Deferred()
            self.world.clock.callLater(1, lambda: loading.callback(self.world.data.get(key)))
            return loading

        self.begin_with(load)
        self.check_two_seconds()

    def test_coroutine(self) -> None:
        async def load(key: str) -> Any:
            await self.world.scheduler.sleep(1)
            return self.world.data.get(key)

        self.begin_with(load)
        self.check_two_seconds()

    def check_two_seconds(self) -> None:
        Deferred.fromCoroutine(_waiting(self.cached("a")))
        self.world.clock.advance(1)
        ended = self.world.start(self.world.auditor.audit(5))
        self.world.clock.pump([1, 0])
        self.assertEqual(brief(ended[0].to_json()), {"checked": 1, "coherent": 1})
        self.world.data["a"] = 1
        ended = self.world.start(self.world.auditor.audit(5))
        self.world.clock.pump([1, 1, 0])
        self.assertEqual(brief(ended[0].to_json()), {"checked": 1, "incoherent": 1})
        self.assertIsNone(self.world.entry(("a",), "cached"))

    def test_failing(self) -> None:
        self.failing = False

        def load(key: str) -> int:
            if self.failing:
                raise ValueError(SECRET)
            return 1

        self.begin_with(load)
        self.cached("a")
        self.cached("b")
        self.failing = True
        report = self.world.audit()
        self.assertEqual(brief(report), {"checked": 2, "failed": 2})
        self.assertEqual(report["errors"], {"cached: ValueError": 2})
        self.assertEqual(self.world.cache("cached").counts()["size"], 2)
        self.assertEqual(self.world.auditor.counts["audited"], {})

    def test_hanging_loads_do_not_pile_up(self) -> None:
        hanging: list[Deferred[int]] = []

        def load(key: str) -> Deferred[int]:
            hanging.append(Deferred())
            return hanging[-1]

        self.begin_with(load)
        for n, key in enumerate("ab"):
            self.cached(key)
            hanging[n].callback(1)
        ended = self.world.start(self.world.auditor.audit(5))
        self.world.clock.pump([LOAD_S, 0, 0, 0])
        report = ended[0].to_json()
        self.assertEqual(brief(report), {"checked": 2, "failed": 2})
        self.assertEqual(report["errors"], {"cached: LoadTooLong": 2})
        self.assertEqual(len(hanging), 3)
        hanging[2].errback(Failure(ValueError("too late")))
        ended = self.world.start(self.world.auditor.audit(1))
        hanging[3].callback(1)
        self.world.clock.pump([0, 0])
        self.assertEqual(brief(ended[0].to_json()), {"checked": 1, "coherent": 1})

    def test_a_database_that_is_away(self) -> None:
        self.world.data["a"] = 2
        self.world.store.away = True
        report = self.world.audit()
        self.assertEqual(brief(report), {"checked": 3, "coherent": 2, "failed": 1})
        self.assertEqual(report["errors"], {"name_of: DatabaseAway": 1})

    def test_an_object_that_is_gone(self) -> None:
        cache = self.world.caches.open(
            Declaration(name="name_of", arity=1, max_entries=5, by_name=True), lambda: None
        )
        cache.loaded(("z",), cache.begin(("z",)), 1)
        self.assertEqual(brief(self.world.audit()), {"checked": 3, "coherent": 3})

    def test_values_that_cannot_be_compared(self) -> None:
        class Plain:
            pass

        class Raises:
            def __eq__(self, other: object) -> bool:
                raise ValueError(SECRET)

            __hash__ = None  # type: ignore[assignment]

        made: tuple[Callable[[], object], ...]
        made = (Plain, Raises, lambda: [Plain()], lambda: float("nan"), lambda: {"x": (Plain(), 1)})
        for number, make in enumerate(made):
            with self.subTest(number):
                self.begin_with(_ignoring_the_key(make))
                self.cached("a")
                self.assertEqual(brief(self.world.audit()), {"checked": 1, "incomparable": 1})
                self.assertEqual(self.world.log.lines, [])
                self.assertEqual(self.world.cache("cached").counts()["size"], 1)


async def _waiting(answer: Any) -> Any:
    return await answer


def _ignoring_the_key(make: Callable[[], object]) -> Callable[[str], object]:
    return lambda key: make()


#: What happens in a race: a change by this process or another, a call, a look, an audit.
STEPS = st.one_of(
    st.tuples(st.sampled_from(["own", "other", "call"]), st.sampled_from("ab")),
    st.tuples(st.sampled_from(["look", "audit", "sample"]), st.just("")),
    st.tuples(st.just("time"), st.sampled_from([0.0, 0.01, 0.3])),
)


class Races(TestCase):
    """Changes, loads, announcements and audits in any order."""

    @given(
        st.lists(STEPS, max_size=40),
        st.lists(st.sampled_from([0.0, 0.01, 0.1]), min_size=1, max_size=7),
        st.booleans(),
    )
    @settings(max_examples=300)
    def test_no_false_alarm_and_no_stale_entry_is_missed(
        self, steps: list[tuple[str, Any]], pauses: list[float], behind_their_back: bool
    ) -> None:
        turns = iter(range(10**6))

        async def load(key: str) -> int:
            for _ in range(2):
                found: int = world.data.get(key, 0)
                await world.scheduler.sleep(pauses[next(turns) % len(pauses)])
                if next(turns) % 2:
                    break
            return found

        def more(caches: Caches) -> None:
            self.slow = caches.cached(by_name=True, name="slow")(load)

        world = Audited(more)
        try:
            audits = []
            for what, value in steps:
                if what in ("own", "other"):
                    world.data[value] = world.data.get(value, 0) + 1
                    row = world.stale_row((value,), "slow")
                    world.by_master(row) if what == "own" else world.by_other(row)
                elif what == "call":
                    Deferred.fromCoroutine(self.slow(value))
                elif what == "look":
                    world.announcer.wake_all()
                elif what == "audit":
                    audits.append(world.start(world.auditor.audit(10)))
                elif what == "sample":
                    audits.append(world.start(world.auditor.audit_one()))
                else:
                    world.clock.advance(value)
            world.clock.pump([0.5] * 20)
            self.assertTrue(all(audits))
            self.assertEqual(world.auditor.incoherent, {})
            Deferred.fromCoroutine(self.slow("a"))
            world.clock.pump([0.1] * 5)
            world.data["a"] = world.data.get("a", 0) + behind_their_back
            last = world.start(world.auditor.audit(10))
            world.clock.pump([0.1] * 20)
            self.assertEqual(last[0].to_json()["incoherent"], int(behind_their_back))
        finally:
            world.stop()

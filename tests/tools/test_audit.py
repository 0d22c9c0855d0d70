"""Cache audits find stale entries, and no entries whose invalidation is on its way."""

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
from tests.tools.audit_fixtures import SECRET, AuditCase, AuditedProcess, nonzero_counts


class AuditVerdicts(AuditCase):
    """The verdict about an entry."""

    def test_an_equal_value_is_coherent_and_changes_nothing(self) -> None:
        before, counts = list(self.process.cache().entries.items()), self.process.cache().counts()
        self.assertEqual(nonzero_counts(self.process.audit()), {"checked": 3, "coherent": 3})
        self.assertEqual(self.process.loads, 6)
        self.assertEqual(self.process.cache().counts(), counts)
        self.assertEqual(list(self.process.cache().entries.items()), before)
        self.assertEqual(
            self.process.auditor.counts, {"audited": {"name_of": 3}, "incoherent": {"name_of": 0}}
        )

    def test_an_audit_does_not_count_as_use(self) -> None:
        self.process.audit()
        self.process.cache().entries.popitem()
        self.assertNotIn(("a",), self.process.cache().entries)
        EntryLocation(self.process.cache(), ("b",)).entry(0)
        self.process.cache().entries.popitem()
        self.assertNotIn(("b",), self.process.cache().entries)

    def test_empty_caches_have_an_empty_report(self) -> None:
        self.assertEqual(nonzero_counts(self.new_process().audit()), {})

    def test_a_change_without_an_invalidation_is_stale(self) -> None:
        self.process.data["b"] = {"secret": SECRET, "more": 1}
        report = self.process.audit()
        self.assertEqual(nonzero_counts(report), {"checked": 3, "coherent": 2, "incoherent": 1})
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
            self.process.log.lines,
            [
                (
                    "warn",
                    "an entry of cache name_of was stale, and is dropped: key ['b']: "
                    + found["expected"],
                )
            ],
        )
        self.assertIsNone(self.process.entry(("b",)))
        self.assertEqual(self.process.auditor.incoherent, {"name_of": 1})
        self.assertEqual(self.process.name_of("b")["more"], 1)
        self.assertEqual(nonzero_counts(self.process.audit()), {"checked": 3, "coherent": 3})
        self.assertNotIn(SECRET, json.dumps([report, self.process.log.lines]))

    def test_a_change_whose_invalidation_arrives_is_in_flight(self) -> None:
        """The invalidation is committed with the change, and not announced yet."""
        self.process.data["a"] = 2
        self.process.commit_as_other(self.process.invalidation(("a",)))
        ended = self.process.start(self.process.auditor.audit(100))
        self.process.clock.advance(0.1)
        self.assertEqual(ended, [])
        self.assertIsNotNone(self.process.entry(("a",)))
        self.process.clock.pump([1, 0, 0, 0, 0])
        (report,) = ended
        self.assertEqual(
            nonzero_counts(report.to_json()), {"checked": 3, "coherent": 2, "in_flight": 1}
        )
        self.assertEqual(self.process.auditor.incoherent, {})
        self.assertEqual(self.process.log.lines, [])

    def test_an_entry_reloaded_during_the_wait_is_in_flight(self) -> None:
        self.process.data["a"] = 2
        self.process.commit_as_other(self.process.invalidation(("a",)))
        ended = self.process.start(self.process.auditor.audit(100))
        self.process.clock.advance(0.1)
        self.process.commit_as_master(self.process.invalidation(("a",)))
        self.process.name_of("a")
        self.process.data["a"] = 3  # the next change is already being made
        self.process.commit_as_other(self.process.invalidation(("a",)))
        self.process.clock.pump([1, 0, 0, 0, 0])
        (report,) = ended
        self.assertEqual(nonzero_counts(report.to_json())["in_flight"], 1)
        self.assertNotIn("incoherent", nonzero_counts(report.to_json()))

    def test_an_entry_is_behind_if_the_wait_times_out(self) -> None:
        """The rows after an open reservation of the same writer are unknown."""
        ended = self.process.start(self.process.other.reserve(CACHES, 1, 0))
        self.assertEqual(ended, [[1]])
        self.process.data["a"] = 2
        self.process.commit_as_other(self.process.invalidation(("a",)))
        ended = self.process.start(self.process.auditor.audit(100))
        self.process.clock.pump([0.5] * int(2 * WAIT_S - 1))
        self.assertEqual(ended, [])
        self.process.clock.pump([0.5, 0, 0, 0])
        (report,) = ended
        self.assertEqual(
            nonzero_counts(report.to_json()), {"checked": 3, "coherent": 2, "behind": 1}
        )
        self.assertIsNotNone(self.process.entry(("a",)))
        self.assertEqual(self.process.auditor.audited, {"name_of": 2})

    def test_all_entries_share_one_time_limit(self) -> None:
        self.process.start(self.process.other.reserve(CACHES, 1, 0))
        for key in "abc":
            self.process.data[key] = 2
        self.process.commit_as_other(self.process.invalidation(("a",)))
        ended = self.process.start(self.process.auditor.audit(100))
        self.process.clock.pump([WAIT_S, 0, 0, 0, 0, 0, 0, 0])
        (report,) = ended
        self.assertEqual(nonzero_counts(report.to_json()), {"checked": 3, "behind": 3})

    def test_ignores_expired_entries(self) -> None:
        def more(caches: Caches) -> None:
            self.expiring: Any = caches.cached(by_name=True, ttl_s=5.0, name="expiring")(
                lambda key: self.process.data[key]
            )

        self.process = self.new_process(more)
        self.process.data["a"] = 1
        self.expiring("a")
        self.process.data["a"] = 2
        self.process.clock.advance(5)
        self.assertEqual(nonzero_counts(self.process.audit()), {})

    def test_a_change_of_an_immutable_value_is_stale(self) -> None:
        def more(caches: Caches) -> None:
            self.fixed: Any = caches.cached(immutable=True, name="fixed")(
                lambda key: self.process.data[key]
            )

        self.process = self.new_process(more)
        self.process.data["a"] = 1
        self.fixed("a")
        self.process.data["a"] = 2
        (found,) = self.process.audit()["stale"]
        self.assertEqual(
            (found["positions"], found["expected"]),
            ({}, "nothing ever invalidates it, yet what it is loaded from has changed"),
        )

    def test_reports_unusual_keys(self) -> None:
        def more(caches: Caches) -> None:
            self.odd: Any = caches.cached(by_name=True, name="odd")(lambda a, b: self.loaded)

        self.process, self.loaded = self.new_process(more), 1
        keys = [("\ud800", "x" * 1000), (None, 2**80), (True, 10**5000), (1.5, -(2**63))]
        for key in keys:
            self.odd(*key)
        self.loaded = 2
        report = self.process.audit()
        self.assertEqual(len(report["stale"]), 4)
        self.assertEqual(
            [[str(part)[:20] for part in found["key"]] for found in report["stale"]][:2],
            [["\\ud800", "x" * 20], ["None", "0x100000000000000000"]],
        )
        self.assertEqual(self.process.cache("odd").counts()["size"], 0)

    def test_lists_a_limited_number_of_stale_entries(self) -> None:
        for key in range(MOST_STALE + 5):
            self.process.name_of(str(key))
            self.process.data[str(key)] = 1
        report = self.process.audit(1000)
        self.assertEqual((report["incoherent"], len(report["stale"])), (MOST_STALE + 5, MOST_STALE))
        self.assertEqual(len(self.process.log.lines), MOST_STALE + 1)
        self.assertIn("5 more", self.process.log.lines[-1][1])
        self.assertEqual(self.process.auditor.incoherent["name_of"], MOST_STALE + 5)

    def test_refuses_a_second_audit_but_not_samples(self) -> None:
        self.process.data["a"] = 2
        self.process.commit_as_other(self.process.invalidation(("a",)))
        first = self.process.start(self.process.auditor.audit(100))
        (refused,) = self.process.start(self.process.auditor.audit(100))
        self.assertIsInstance(refused.value, AuditInProgress)
        self.process.data["b"] = self.process.data["c"] = 2
        samples = [self.process.start(self.process.auditor.audit_one()) for _ in range(9)]
        self.process.clock.pump([1, 0, 0, 0, 0, 0])
        self.assertTrue(first)
        self.assertTrue(all(samples))
        self.assertEqual(self.process.auditor.incoherent, {"name_of": 2})  # each found once

    def test_an_audit_ends_when_its_time_is_up(self) -> None:
        def more(caches: Caches) -> None:
            self.slow = caches.cached(by_name=True, name="slow")(self.load_slowly)

        self.process = self.new_process(more)
        for key in range(20):
            self.slow(key)
        self.process.clock.advance(20)
        ended = self.process.start(self.process.auditor.audit(100))
        self.process.clock.pump([20, 0] * 20)
        (report,) = ended
        self.assertEqual(report.left, 20 - int(AUDIT_S // 20) - 1)
        self.assertEqual(report.verdicts.total(), int(AUDIT_S // 20) + 1)

    def test_slow_loads_do_not_count_as_waiting(self) -> None:
        def more(caches: Caches) -> None:
            self.slow = caches.cached(by_name=True, name="slow")(self.load_slowly)

        self.process = self.new_process(more)
        self.slow(1)
        self.process.clock.advance(20)
        self.process.name_of("a")
        ended = self.process.start(self.process.auditor.audit(100))
        self.process.clock.advance(20 - 0.1)
        self.process.data["a"] = 2
        self.process.commit_as_other(self.process.invalidation(("a",)))
        self.process.clock.pump([0.1, 0, 1, 0, 0, 0])
        (report,) = ended
        self.assertEqual(
            nonzero_counts(report.to_json()), {"checked": 2, "coherent": 1, "in_flight": 1}
        )

    def load_slowly(self, key: int) -> Deferred[int]:
        loading: Deferred[int] = Deferred()
        self.process.clock.callLater(20, loading.callback, 1)
        return loading


class FreshLoadsInAudits(AuditCase):
    """Fresh loads by cached functions of every kind."""

    def cache_function(self, load: Callable[..., Any]) -> None:
        def more(caches: Caches) -> None:
            self.cached = caches.cached(by_name=True, name="cached")(load)

        self.process = self.new_process(more)

    def test_a_deferred_is_awaited(self) -> None:
        def load(key: str) -> Deferred[Any]:
            loading: Deferred[Any] = Deferred()
            self.process.clock.callLater(1, lambda: loading.callback(self.process.data.get(key)))
            return loading

        self.cache_function(load)
        self.check_loads_of_one_second()

    def test_a_coroutine_is_awaited(self) -> None:
        async def load(key: str) -> Any:
            await self.process.scheduler.sleep(1)
            return self.process.data.get(key)

        self.cache_function(load)
        self.check_loads_of_one_second()

    def check_loads_of_one_second(self) -> None:
        Deferred.fromCoroutine(_await(self.cached("a")))
        self.process.clock.advance(1)
        ended = self.process.start(self.process.auditor.audit(5))
        self.process.clock.pump([1, 0])
        self.assertEqual(nonzero_counts(ended[0].to_json()), {"checked": 1, "coherent": 1})
        self.process.data["a"] = 1
        ended = self.process.start(self.process.auditor.audit(5))
        self.process.clock.pump([1, 1, 0])
        self.assertEqual(nonzero_counts(ended[0].to_json()), {"checked": 1, "incoherent": 1})
        self.assertIsNone(self.process.entry(("a",), "cached"))

    def test_a_load_that_raises_is_counted_as_failed(self) -> None:
        self.is_failing = False

        def load(key: str) -> int:
            if self.is_failing:
                raise ValueError(SECRET)
            return 1

        self.cache_function(load)
        self.cached("a")
        self.cached("b")
        self.is_failing = True
        report = self.process.audit()
        self.assertEqual(nonzero_counts(report), {"checked": 2, "failed": 2})
        self.assertEqual(report["errors"], {"cached: ValueError": 2})
        self.assertEqual(self.process.cache("cached").counts()["size"], 2)
        self.assertEqual(self.process.auditor.counts["audited"], {})

    def test_hanging_loads_do_not_pile_up(self) -> None:
        hanging: list[Deferred[int]] = []

        def load(key: str) -> Deferred[int]:
            hanging.append(Deferred())
            return hanging[-1]

        self.cache_function(load)
        for n, key in enumerate("ab"):
            self.cached(key)
            hanging[n].callback(1)
        ended = self.process.start(self.process.auditor.audit(5))
        self.process.clock.pump([LOAD_S, 0, 0, 0])
        report = ended[0].to_json()
        self.assertEqual(nonzero_counts(report), {"checked": 2, "failed": 2})
        self.assertEqual(report["errors"], {"cached: LoadTooLong": 2})
        self.assertEqual(len(hanging), 3)
        hanging[2].errback(Failure(ValueError("too late")))
        ended = self.process.start(self.process.auditor.audit(1))
        hanging[3].callback(1)
        self.process.clock.pump([0, 0])
        self.assertEqual(nonzero_counts(ended[0].to_json()), {"checked": 1, "coherent": 1})

    def test_an_unavailable_database_is_counted_as_failed(self) -> None:
        self.process.data["a"] = 2
        self.process.store.away = True
        report = self.process.audit()
        self.assertEqual(nonzero_counts(report), {"checked": 3, "coherent": 2, "failed": 1})
        self.assertEqual(report["errors"], {"name_of: DatabaseAway": 1})

    def test_ignores_caches_of_deleted_objects(self) -> None:
        cache = self.process.caches.open(
            Declaration(name="name_of", arity=1, max_entries=5, by_name=True), lambda: None
        )
        cache.loaded(("z",), cache.begin(("z",)), 1)
        self.assertEqual(nonzero_counts(self.process.audit()), {"checked": 3, "coherent": 3})

    def test_values_without_equality_are_incomparable(self) -> None:
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
                self.cache_function(_without_key(make))
                self.cached("a")
                self.assertEqual(
                    nonzero_counts(self.process.audit()), {"checked": 1, "incomparable": 1}
                )
                self.assertEqual(self.process.log.lines, [])
                self.assertEqual(self.process.cache("cached").counts()["size"], 1)


async def _await(value: Any) -> Any:
    return await value


def _without_key(make: Callable[[], object]) -> Callable[[str], object]:
    return lambda key: make()


#: Steps of a race: a change by this process or another, a call, a poll, an audit, or a pause.
STEPS = st.one_of(
    st.tuples(st.sampled_from(["own", "other", "call"]), st.sampled_from("ab")),
    st.tuples(st.sampled_from(["poll", "audit", "sample"]), st.just("")),
    st.tuples(st.just("time"), st.sampled_from([0.0, 0.01, 0.3])),
)


class AuditsDuringChanges(TestCase):
    """Changes, loads, announcements and audits in any order."""

    @given(
        st.lists(STEPS, max_size=40),
        st.lists(st.sampled_from([0.0, 0.01, 0.1]), min_size=1, max_size=7),
        st.booleans(),
    )
    @settings(max_examples=300)
    def test_no_false_alarm_and_no_stale_entry_is_missed(
        self, steps: list[tuple[str, Any]], pauses: list[float], is_change_unannounced: bool
    ) -> None:
        turns = iter(range(10**6))

        async def load(key: str) -> int:
            for _ in range(2):
                found: int = process.data.get(key, 0)
                await process.scheduler.sleep(pauses[next(turns) % len(pauses)])
                if next(turns) % 2:
                    break
            return found

        def more(caches: Caches) -> None:
            self.slow = caches.cached(by_name=True, name="slow")(load)

        process = AuditedProcess(more)
        try:
            audits = []
            for what, value in steps:
                if what in ("own", "other"):
                    process.data[value] = process.data.get(value, 0) + 1
                    row = process.invalidation((value,), "slow")
                    process.commit_as_master(row) if what == "own" else process.commit_as_other(row)
                elif what == "call":
                    Deferred.fromCoroutine(self.slow(value))
                elif what == "poll":
                    process.announcer.wake_all()
                elif what == "audit":
                    audits.append(process.start(process.auditor.audit(10)))
                elif what == "sample":
                    audits.append(process.start(process.auditor.audit_one()))
                else:
                    process.clock.advance(value)
            process.clock.pump([0.5] * 20)
            self.assertTrue(all(audits))
            self.assertEqual(process.auditor.incoherent, {})
            Deferred.fromCoroutine(self.slow("a"))
            process.clock.pump([0.1] * 5)
            process.data["a"] = process.data.get("a", 0) + is_change_unannounced
            last = process.start(process.auditor.audit(10))
            process.clock.pump([0.1] * 20)
            self.assertEqual(last[0].to_json()["incoherent"], int(is_change_unannounced))
        finally:
            process.stop()

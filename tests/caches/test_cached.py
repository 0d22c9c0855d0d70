"""``@cached``: one contract for functions and methods of every kind."""

from __future__ import annotations

import gc
from typing import Any, ClassVar

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from synrepl.caches.cache import Cache, UnusableKey
from tests.caches import cached_forms
from tests.caches.cached_forms import Form, Source, as_deferred, caches_under

Base: type[SynchronousTestCase] = SynchronousTestCase


class Failing(Exception):
    """The error of a failing source."""


class Declared:
    """A cached function of one form; mixed into test cases."""

    form: ClassVar[Form]

    def setUp(self) -> None:
        self.clock = Clock()
        self.source = Source()
        self.caches = caches_under(self.clock)

    def declare(self, **options: Any) -> None:
        form = type(self).form
        self.get, self.get_many = form(self.source, self.caches, {"name": "get", **options})

    @property
    def cache(self) -> Cache:
        (cache,) = self.caches.named("get")
        return cache

    def count(self, name: str) -> int:
        return self.caches.stats()["get"][name]


class CachedContract(Declared):
    """What holds of all cached_forms."""

    def ask(self: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        return as_deferred(self.get(*args, **kwargs))

    def got(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.successResultOf(self.answered(*args, **kwargs))

    def answered(self: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        """Call the function, and supply the result."""
        try:
            return as_deferred(self.get(*args, **kwargs))
        except Exception as error:
            return fail(error)

    def test_loads_once_and_caches_the_result(self: Any) -> None:
        self.declare()
        first = self.got("a")
        self.source.version = 2
        self.assertEqual([self.got("a"), self.got("a", "b"), self.got(b="b", a="a")], [first] * 3)
        self.assertEqual(self.source.asked, [("a", "b")])
        self.assertEqual((self.count("hits"), self.count("misses")), (3, 1))

    def test_always_returns_the_same_kind_of_result(self: Any) -> None:
        self.declare()
        kinds = []
        for _ in range(3):
            answer = self.get("a")
            kinds.append(type(answer))
            self.successResultOf(as_deferred(answer))
        self.assertEqual(len(set(kinds)), 1)

    def test_keys_differ_by_every_argument(self: Any) -> None:
        self.declare()
        keys = [("a", "b"), ("b", "a"), ("a", None), (1, 2.5), ("1", "2.5")]
        values = [self.got(*key) for key in keys]
        self.assertEqual(self.source.asked, keys)
        self.assertEqual([self.got(*key) for key in keys], values)

    def test_refuses_calls_with_wrong_arguments(self: Any) -> None:
        self.declare()
        for args, kwargs in (((), {}), (("a", "b", "c"), {}), (("a",), {"x": 1})):
            self.failureResultOf(self.answered(*args, **kwargs), TypeError)
        for bad in (["list"], {}, object(), b"bytes", ("tuple",), float("nan"), float("inf")):
            failure = self.failureResultOf(self.answered("a", bad), UnusableKey)
            self.assertIn("cache 'get' cannot have the key ('a', ", str(failure.value))
        self.assertEqual((self.source.asked, len(self.cache.loads)), ([], 0))

    def test_the_number_of_entries_is_limited(self: Any) -> None:
        self.declare(max_entries=2)
        for a in "abacb":  # c takes the place of b, which was used longest ago
            self.got(a)
        self.assertEqual(self.source.asked, [(a, "b") for a in "abcb"])
        self.assertEqual((self.count("size"), self.count("evictions")), (2, 2))

    def test_the_size_in_bytes_is_limited(self: Any) -> None:
        self.declare(max_bytes=10, size_of=lambda value: int(value[2]))
        for a in (4, 5, 4, 6):  # 6 takes the place of 5
            self.got(a)
        self.assertEqual((self.count("bytes"), self.count("evictions")), (10, 1))
        self.got(11)  # more than all of them may have
        self.assertEqual((self.count("bytes"), self.count("size")), (10, 2))
        self.got(11)
        self.assertEqual(self.source.asked.count((11, "b")), 2)

    def test_a_size_that_cannot_be_computed_is_an_error_of_the_call(self: Any) -> None:
        for error in (Failing, ValueError):
            with self.subTest(error):
                self.setUp()

                def size_of(value: Any, error: type[Exception] = error) -> int:
                    raise error("no size")

                self.declare(max_bytes=10, size_of=size_of)
                self.failureResultOf(self.answered("a"), error)
                self.assertEqual((self.count("size"), len(self.cache.loads)), (0, 0))

    def test_loads_again_after_the_ttl(self: Any) -> None:
        self.declare(ttl_s=10.0)
        self.got("a")
        self.clock.advance(9.9)
        self.got("a")
        self.assertEqual(len(self.source.asked), 1)
        self.clock.advance(0.1)
        self.source.version = 2
        self.assertEqual(self.got("a"), ("value", 2, "a", "b"))
        self.assertEqual((self.count("expirations"), self.count("size")), (1, 1))

    def test_errors_are_not_cached(self: Any) -> None:
        self.declare()
        self.source.error = Failing()
        self.failureResultOf(self.answered("a"), Failing)
        self.failureResultOf(self.answered("a"), Failing)
        self.source.error = None
        self.got("a")
        self.assertEqual((len(self.source.asked), self.count("size")), (3, 1))

    def test_loads_again_after_an_invalidation(self: Any) -> None:
        self.declare()
        for name, key, left in (
            ("its own key", ("a", "b"), {("c", "b")}),
            ("another key", ("a", "c"), {("a", "b"), ("c", "b")}),
            ("more than the key", ("a", "b", "of another version"), {("c", "b")}),
            ("a part, without a tree", ("a",), set()),
            ("an empty key", (), set()),
            ("the whole cache", None, set()),
            ("what no key can be", ("a", ["b"]), set()),
            ("what no key can be, by chance hashable", ("a", ("b",)), set()),
            ("no tuple", "ab", set()),
        ):
            with self.subTest(name):
                self.got("a")
                self.got("c")
                self.caches.invalidate("get", key)
                self.assertEqual(set(self.cache.entries), left)
                self.assertEqual(self.count("size"), len(left))
        self.assertEqual(self.count("evictions"), 0)

    def test_invalidated_while_it_is_loaded_by_the_load_itself(self: Any) -> None:
        """The entry of a plain function, too, may be invalidated while it runs."""
        self.declare()
        one = self.source.one

        def and_then_it_changed(*key: Any) -> Any:
            found = one(*key)
            self.caches.invalidate("get", key)
            return found

        self.source.one = and_then_it_changed
        self.assertEqual(self.got("a"), ("value", 1, "a", "b"))
        self.assertEqual(self.count("size"), 0)


class AsynchronousContract(CachedContract):
    """The contract of functions whose result comes later."""

    def setUp(self) -> None:
        super().setUp()
        self.source.later = True

    def answered(self: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        waiting = super().answered(*args, **kwargs)
        self.source.answer_all()
        return waiting

    def test_always_returns_the_same_kind_of_result(self: Any) -> None:
        self.source.later = False
        super().test_always_returns_the_same_kind_of_result()

    def test_concurrent_callers_share_one_load(self: Any) -> None:
        self.declare()
        waiting = [self.ask("a") for _ in range(3)]
        other = self.ask("c")
        self.assertEqual(self.source.asked, [("a", "b"), ("c", "b")])
        self.source.answer()
        found = [self.successResultOf(each) for each in waiting]
        self.assertEqual(found, [("value", 1, "a", "b")] * 3)
        self.assertNoResult(other)
        self.source.answer()
        self.successResultOf(other)

    def test_an_error_reaches_all_waiting_callers(self: Any) -> None:
        self.declare()
        self.source.error = Failing()
        waiting = [self.ask("a") for _ in range(3)]
        self.source.answer()
        for each in waiting:
            self.failureResultOf(each, Failing)
        del waiting, each
        gc.collect()
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_a_cancelled_caller_does_not_affect_others(self: Any) -> None:
        self.declare()
        first, second = self.ask("a"), self.ask("a")
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.source.answer()
        self.successResultOf(second)
        self.got("a")
        self.assertEqual(len(self.source.asked), 1)

    def test_the_result_is_cached_even_if_all_callers_cancel(self: Any) -> None:
        self.declare()
        alone = self.ask("a")
        alone.cancel()
        self.failureResultOf(alone, CancelledError)
        self.source.answer()
        self.assertEqual(self.count("size"), 1)

    def test_an_error_is_dropped_if_all_callers_cancel(self: Any) -> None:
        self.declare()
        self.source.error = Failing()
        alone = self.ask("a")
        alone.cancel()
        self.failureResultOf(alone, CancelledError)
        self.source.answer()
        del alone
        gc.collect()
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_a_load_begun_before_an_invalidation_is_not_cached(self: Any) -> None:
        for name, key in (("key", ("a", "b")), ("part", ("a",)), ("whole", None)):
            with self.subTest(name):
                self.setUp()
                self.declare()
                before = self.ask("a")
                self.caches.invalidate("get", key)
                self.source.version = 2
                after = self.ask("a")  # does not join the old load
                self.assertEqual(len(self.source.asked), 2)
                self.source.answer()
                self.assertEqual(self.successResultOf(before)[1], 1)
                self.assertEqual(self.count("size"), 0)
                joined = self.ask("a")
                self.source.answer()
                self.assertEqual(self.successResultOf(after)[1], 2)
                self.assertEqual(self.successResultOf(joined)[1], 2)
                self.assertEqual(self.got("a")[1], 2)

    def test_an_older_load_that_ends_last_is_not_cached(self: Any) -> None:
        self.declare()
        old = self.ask("a")
        self.caches.invalidate("get", ("a", "b"))
        self.source.version = 2
        new = self.ask("a")
        self.source.answer_newest()
        self.source.answer()
        self.assertEqual((self.successResultOf(old)[1], self.successResultOf(new)[1]), (1, 2))
        self.assertEqual(self.got("a")[1], 2)
        self.assertEqual(len(self.source.asked), 2)

    def test_a_load_that_fails_after_an_invalidation_harms_no_other(self: Any) -> None:
        self.declare()
        self.source.error = Failing()
        old = self.ask("a")
        self.caches.invalidate("get", ("a", "b"))
        self.source.error = None
        new = self.ask("a")
        self.source.answer()
        self.failureResultOf(old, Failing)
        self.source.answer()
        self.successResultOf(new)
        self.assertEqual(self.count("size"), 1)


class PlainFunction(CachedContract, Base):
    form = cached_forms.plain_function


class PlainMethod(CachedContract, Base):
    form = cached_forms.plain_method


class DeferredFunction(AsynchronousContract, Base):
    form = cached_forms.deferred_function


class DeferredMethod(AsynchronousContract, Base):
    form = cached_forms.deferred_method


class InlineCallbacksMethod(AsynchronousContract, Base):
    form = cached_forms.inline_method


class CoroutineFunction(AsynchronousContract, Base):
    form = cached_forms.coroutine_function


class CoroutineMethod(AsynchronousContract, Base):
    form = cached_forms.coroutine_method


class ReturnedCoroutine(AsynchronousContract, Base):
    form = cached_forms.returned_coroutine

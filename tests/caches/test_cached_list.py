"""``@cached_list``: one contract for functions and methods of every kind."""

from __future__ import annotations

import gc
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from synrepl.caches.cache import BadCache, UnusableKey
from synrepl.caches.many import NotAMapping, NotMany
from tests.caches import cached_forms
from tests.caches.cached_forms import as_deferred, caches_under
from tests.caches.test_cached import Base, Declared, Failing


class CachedListContract(Declared):
    """What holds of all cached_forms."""

    def ask(self: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        try:
            return as_deferred(self.get_many(*args, **kwargs))
        except Exception as error:
            return fail(error)

    def answered(self: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        """Call for many items, and supply the result."""
        return self.ask(*args, **kwargs)

    def got(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.successResultOf(self.answered(*args, **kwargs))

    def got_one(self: Any, *args: Any) -> Any:
        return self.successResultOf(as_deferred(self.get(*args)))

    def value(self, b: Any, version: int = 1) -> Any:
        return ("value", version, "a", b)

    def test_calls_once_for_the_missing_items(self: Any) -> None:
        self.declare()
        self.assertEqual(self.got("a", ["x", "y"]), {"x": self.value("x"), "y": self.value("y")})
        self.source.version = 2
        self.got("a", ["z", "x", "w"])
        self.assertEqual(self.source.asked, [("a", ["x", "y"]), ("a", ["z", "w"])])

    def test_results_come_in_the_order_asked(self: Any) -> None:
        self.declare()
        self.got("a", ["m", "b"])
        found = self.got("a", ["z", "m", "no", "b", "a"])
        self.assertEqual(list(found), ["z", "m", "no", "b", "a"])

    def test_shares_its_entries_with_the_single_function(self: Any) -> None:
        self.declare()
        self.got("a", ["x"])
        self.got_one("a", "x")  # may be called, to see what kind of function it is
        self.got_one("a", "x")
        self.source.asked.clear()
        self.source.version = 2
        self.assertEqual(self.got_one("a", "x"), self.value("x"))
        self.assertEqual(self.got("a", ["x"]), {"x": self.value("x")})
        self.assertEqual(self.source.asked, [])

    def test_always_returns_the_same_kind_of_result(self: Any) -> None:
        self.declare()
        self.got_one("a", "x")
        many = [self.get_many("a", ["x"]), self.get_many("a", ["x"]), self.get_many("a", ["y"])]
        many.append(self.get_many("a", []))
        self.assertEqual(len(set(map(type, many))), 1)
        for each in many:
            self.successResultOf(as_deferred(each))

    def test_the_single_function_keeps_its_kind_of_result(self: Any) -> None:
        self.declare()
        self.got("a", ["x", "y"])
        ones = [self.get("a", "x"), self.get("a", "x"), self.get("a", "z")]
        self.assertEqual(len(set(map(type, ones))), 1)
        for each in ones:
            self.successResultOf(as_deferred(each))

    def test_missing_results_are_cached_as_none(self: Any) -> None:
        self.declare()
        self.assertEqual(self.got("a", ["no", "x"]), {"no": None, "x": self.value("x")})
        self.assertEqual(self.got("a", ["no"]), {"no": None})
        self.assertEqual(len(self.source.asked), 1)

    def test_accepts_duplicate_items(self: Any) -> None:
        self.declare()
        self.assertEqual(list(self.got("a", ["x", "y", "x"])), ["x", "y"])
        self.assertEqual(self.source.asked, [("a", ["x", "y"])])

    def test_accepts_an_empty_list(self: Any) -> None:
        self.declare()
        self.assertEqual(self.got("a", []), {})
        self.assertEqual(self.source.asked, [])

    def test_other_arguments_are_part_of_the_key(self: Any) -> None:
        self.declare()
        self.got("a", ["x"])
        self.got("b", iter(["x"]))
        self.got(bs=("x",), a="a")
        self.assertEqual(self.source.asked, [("a", ["x"]), ("b", ["x"])])

    def test_refuses_bad_items(self: Any) -> None:
        self.declare()
        for wrong, error in (
            (("a", "text"), NotMany),
            (("a", b"bytes"), NotMany),
            (("a", 5), NotMany),
            (("a", ["x", ["y"]]), UnusableKey),
            (("a", ["x", ("y",)]), UnusableKey),
            ((["a"], ["x"]), UnusableKey),
            (("a",), TypeError),
        ):
            with self.subTest(str(wrong)):
                self.failureResultOf(self.ask(*wrong), error)
                self.assertEqual(self.caches.named("get") and len(self.cache.loads), 0)
        self.assertEqual(self.source.asked, [])

    def test_errors_are_not_cached(self: Any) -> None:
        self.declare()
        self.source.error = Failing()
        self.failureResultOf(self.answered("a", ["x", "y"]), Failing)
        self.assertEqual(len(self.cache.loads), 0)
        self.source.error = None
        self.got("a", ["x"])

    def test_refuses_a_result_that_is_not_a_mapping(self: Any) -> None:
        self.declare()
        self.source.many = lambda a, bs: [a]
        failure = self.failureResultOf(self.answered("a", ["x", "y"]), NotAMapping)
        self.assertIn("cache 'get' has to return a mapping", str(failure.value))
        self.assertEqual((len(self.cache.loads), self.count("size")), (0, 0))
        gc.collect()
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_an_error_of_the_mapping_fails_all_loads(self: Any) -> None:
        class Broken(dict[Any, Any]):
            def get(self, key: Any, default: Any = None) -> Any:
                raise Failing

        self.declare()
        self.source.many = lambda a, bs: Broken()
        self.failureResultOf(self.answered("a", ["x", "y"]), Failing)
        self.assertEqual((len(self.cache.loads), self.count("size")), (0, 0))

    def test_returns_more_items_than_the_cache_holds(self: Any) -> None:
        self.declare(max_entries=2)
        self.assertEqual(len(self.got("a", range(5))), 5)
        self.assertEqual(self.count("size"), 2)


class AsynchronousListContract(CachedListContract):
    """The contract of functions whose result comes later."""

    def setUp(self) -> None:
        super().setUp()
        self.source.later = True

    def answered(self: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        waiting = self.ask(*args, **kwargs)
        self.source.answer_all()
        return waiting

    def got_one(self: Any, *args: Any) -> Any:
        waiting = as_deferred(self.get(*args))
        self.source.answer_all()
        return self.successResultOf(waiting)

    def test_always_returns_the_same_kind_of_result(self: Any) -> None:
        self.source.later = False
        super().test_always_returns_the_same_kind_of_result()

    def test_the_single_function_keeps_its_kind_of_result(self: Any) -> None:
        self.source.later = False
        super().test_the_single_function_keeps_its_kind_of_result()

    def known(self: Any) -> None:
        """Make the kind of each function known, which some forms do not declare."""
        self.got("a", ["known"])
        self.got_one("a", "known")
        self.source.asked.clear()

    def test_joins_loads_in_progress(self: Any) -> None:
        self.declare()
        self.known()
        one = as_deferred(self.get("a", "x"))
        many = self.ask("a", ["w", "x"])
        more = self.ask("a", ["x", "w", "known"])
        other = as_deferred(self.get("a", "w"))
        self.assertEqual(self.source.asked, [("a", "x"), ("a", ["w"])])
        self.source.answer()
        self.successResultOf(one)
        self.assertNoResult(many)
        self.source.answer()
        self.assertEqual(list(self.successResultOf(many)), ["w", "x"])
        self.assertEqual(list(self.successResultOf(more)), ["x", "w", "known"])
        self.assertEqual(self.successResultOf(other), self.value("w"))

    def test_caches_all_but_items_invalidated_meanwhile(self: Any) -> None:
        self.declare()
        self.known()
        many = self.ask("a", ["x", "y"])
        self.caches.invalidate("get", ("a", "x"))
        self.source.version = 2
        again = self.ask("a", ["x", "y"])
        self.assertEqual(self.source.asked, [("a", ["x", "y"]), ("a", ["x"])])
        self.source.answer()
        self.assertEqual(self.successResultOf(many), {"x": self.value("x"), "y": self.value("y")})
        self.assertNotIn(("a", "x"), self.cache.entries)
        self.source.answer()
        found = self.successResultOf(again)
        self.assertEqual(found, {"x": self.value("x", 2), "y": self.value("y")})

    def test_an_error_reaches_all_waiting_callers(self: Any) -> None:
        self.declare()
        self.known()
        self.source.error = Failing()
        waiting = [self.ask("a", ["x", "y"]), self.ask("a", ["y"]), as_deferred(self.get("a", "x"))]
        self.assertEqual(len(self.source.asked), 1)
        self.source.answer()
        for each in waiting:
            self.failureResultOf(each, Failing)
        del waiting, each
        gc.collect()
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_a_cancelled_caller_does_not_affect_others(self: Any) -> None:
        self.declare()
        self.known()
        first, second = self.ask("a", ["x", "y"]), self.ask("a", ["y"])
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.source.answer()
        self.successResultOf(second)
        self.got("a", ["x"])
        self.assertEqual(len(self.source.asked), 1)


class PlainFunction(CachedListContract, Base):
    form = cached_forms.plain_function


class PlainMethod(CachedListContract, Base):
    form = cached_forms.plain_method


class DeferredFunction(AsynchronousListContract, Base):
    form = cached_forms.deferred_function


class DeferredMethod(AsynchronousListContract, Base):
    form = cached_forms.deferred_method


class InlineCallbacksMethod(AsynchronousListContract, Base):
    form = cached_forms.inline_method


class CoroutineFunction(AsynchronousListContract, Base):
    form = cached_forms.coroutine_function


class CoroutineMethod(AsynchronousListContract, Base):
    form = cached_forms.coroutine_method


class ReturnedCoroutine(AsynchronousListContract, Base):
    form = cached_forms.returned_coroutine


class DeclaredKinds(SynchronousTestCase):
    """Functions that declare their kind of result, so that no call is needed."""

    def test_knows_the_kind_of_result_before_the_first_call(self) -> None:
        for form in (cached_forms.deferred_method, cached_forms.inline_method):
            with self.subTest(form.__name__):
                source, caches = cached_forms.Source(), caches_under(Clock())
                get, get_many = form(source, caches, {"name": "get"})
                self.assertEqual(self.successResultOf(get_many("a", [])), {})
                self.successResultOf(get_many("a", ["x"]))
                self.assertEqual(self.successResultOf(get("a", "x")), ("value", 1, "a", "x"))
                self.assertEqual(source.asked, [("a", ["x"])])


class MixedKinds(SynchronousTestCase):
    def test_a_plain_list_does_not_wait_for_what_is_under_way(self) -> None:
        """Its caller cannot wait, so the function is called for those items, too."""
        source, caches = cached_forms.Source(), caches_under(Clock())
        source.later = True

        @caches.cached()
        async def get(b: str) -> Any:
            return await source.soon(source.one, b)

        @caches.cached_list(get, many="bs")
        def get_many(bs: list[str]) -> Any:
            return {b: ("plain", b) for b in bs}

        waiting = as_deferred(get("x"))
        self.assertEqual(get_many(["x", "y"]), {"x": ("plain", "x"), "y": ("plain", "y")})
        source.answer()
        self.assertEqual(self.successResultOf(waiting), ("value", 1, "x"))
        self.assertEqual(get_many(["x"]), {"x": ("plain", "x")})

    def test_a_plain_function_does_not_wait_for_a_list(self) -> None:
        source, caches = cached_forms.Source(), caches_under(Clock())
        source.later = True

        @caches.cached()
        def get(b: str) -> Any:
            return ("plain", b)

        @caches.cached_list(get, many="bs")
        async def get_many(bs: list[str]) -> Any:
            return await source.soon(lambda: {b: ("list", b) for b in bs})

        waiting = as_deferred(get_many(["x"]))
        self.assertEqual(get("x"), ("plain", "x"))
        source.answer()
        self.assertEqual(self.successResultOf(waiting), {"x": ("list", "x")})


class ListDeclarations(SynchronousTestCase):
    def test_refuses_bad_items(self) -> None:
        caches = caches_under(Clock())

        @caches.cached()
        def get(room: str, user: str) -> Any:
            return (room, user)

        def users_first(users: Any, room: str) -> Any: ...
        def too_few(users: Any) -> Any: ...
        def too_many(room: str, users: Any, more: str) -> Any: ...
        def not_there(room: str, people: Any) -> Any: ...
        def right(room: str, users: Any) -> Any:
            return {}

        for wrong in (users_first, too_few, too_many, not_there):
            with self.subTest(wrong.__name__), self.assertRaisesRegex(BadCache, wrong.__name__):
                caches.cached_list(get, many="users")(wrong)(*"ab"[: 1 + (wrong is not too_few)])
        self.assertEqual(caches.cached_list(get, many="users")(right)("a", ["b"]), {"b": None})
        with self.assertRaisesRegex(BadCache, "'right' cannot be .*: it is not @cached"):
            caches.cached_list(right, many="users")

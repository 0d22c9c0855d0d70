"""Caches of objects, by name: opened, invalidated together, counted, closed."""

from __future__ import annotations

import gc
import threading
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters import caches as of_this_process
from synrepl.adapters.caches import make_caches
from synrepl.caches.cache import BadCache, Declaration
from synrepl.caches.registry import Caches
from synrepl.core.errors import InputError
from synrepl.streams.effects import Expansion, Group, Invalidates, whole
from tests.caches.cached_forms import as_deferred, caches_under


class Objects(SynchronousTestCase):
    def setUp(self) -> None:
        self.registry = registry = caches_under(Clock())
        self.asked: list[Any] = []
        asked = self.asked

        class Users:
            def __init__(self, name: str) -> None:
                self.name = name

            @registry.cached(by_name=True, groups=("users",))
            def get(self, user: str) -> Any:
                """The user."""
                asked.append((self.name, user))
                return (self.name, user)

        self.users = Users

    def sizes(self, caches: Caches | None = None) -> list[int]:
        return [len(cache.entries) for cache in (caches or self.registry).named("get")]

    def test_each_object_has_a_cache_of_its_own(self) -> None:
        one, two = self.users("one"), self.users("two")
        self.assertEqual(
            [one.get("@a"), two.get("@a"), one.get("@a")],
            [("one", "@a"), ("two", "@a"), ("one", "@a")],
        )
        self.assertEqual(len(self.asked), 2)
        self.assertEqual(self.registry.stats()["get"]["misses"], 2)

    def test_all_caches_of_a_name_are_invalidated_together(self) -> None:
        one, two = self.users("one"), self.users("two")
        for user in ("@a", "@b"):
            one.get(user)
            two.get(user)
        self.registry.invalidate("get", ("@a",))
        self.assertEqual(self.sizes(), [1, 1])
        for cache in self.registry.matching(Group("users")):
            cache.clear()
        self.assertEqual(self.sizes(), [0, 0])
        self.assertEqual(self.registry.matching("get"), self.registry.named("get"))
        self.assertEqual(self.registry.matching(Group("nobody")), ())

    def test_an_object_that_is_gone_leaves_its_counts(self) -> None:
        one, two = self.users("one"), self.users("two")
        for users in (one, two):
            users.get("@a")
            users.get("@a")
        del one, users
        two.get("@b")
        gc.collect()
        (cache,) = self.registry  # that of the other one
        self.assertEqual(cache.loader()("@c"), ("two", "@c"))  # type: ignore[misc]
        stats = self.registry.stats()["get"]
        self.assertEqual((stats["size"], stats["hits"], stats["misses"]), (2, 2, 3))
        del two
        gc.collect()
        stats = self.registry.stats()["get"]
        self.assertEqual((list(self.registry), stats["size"], stats["hits"]), ([], 0, 2))
        self.assertIsNone(cache.loader())
        self.assertEqual(self.registry.matching(Group("users")), ())
        self.assertTrue(self.registry.is_declared("get"))

    def test_an_object_may_be_collected_in_another_thread(self) -> None:
        """A cache opened at that moment must not be lost, or it would never be invalidated."""
        gone, users = self.users("gone"), self.users("stays")
        gone.get("@a")
        (cache,) = self.registry.named("get")
        elsewhere = threading.Thread(target=self.registry.close, args=(cache,))
        elsewhere.start()
        elsewhere.join()
        self.assertEqual(self.registry.named("get"), (cache,))  # touched by this thread only
        users.get("@a")
        (left,) = self.registry.named("get")
        self.assertIsNot(left, cache)

    def test_an_object_with_caches_of_its_own(self) -> None:
        own = caches_under(Clock())
        users = self.users("own")
        users.caches = own  # type: ignore[attr-defined]
        users.get("@a")
        self.assertEqual((self.sizes(own), self.sizes()), ([1], []))
        self.assertTrue(own.is_declared("get"))
        other = self.users("has something else of that name")
        other.caches = {"not": "a registry"}  # type: ignore[attr-defined]
        other.get("@a")
        self.assertEqual(self.sizes(), [1])

    def test_refuses_objects_that_cannot_store_a_cache(self) -> None:
        registry = self.registry

        class Slots:
            __slots__ = ()

            @registry.cached()
            def get(self, user: str) -> Any: ...

        class NoWeakref:
            __slots__ = ("__dict__",)

            @registry.cached()
            def get(self, user: str) -> Any: ...

        for made, reason in (
            (Slots(), "Slots have no __dict__"),
            (NoWeakref(), "NoWeakref have no __weakref__"),
        ):
            with self.assertRaisesRegex(BadCache, f"cache 'get' .*: objects of {reason}"):
                made.get("@a")
        self.assertEqual(list(registry), [])

    def test_what_is_known_of_the_function_stays(self) -> None:
        self.assertEqual(self.users.get.__doc__, "The user.")
        self.assertEqual(self.users.get.__name__, "get")


class Subclasses(SynchronousTestCase):
    def setUp(self) -> None:
        self.registry = registry = caches_under(Clock())

        class Base:
            version = 1

            @registry.cached()
            async def get(self, user: str) -> Any:
                return ["base", self.version, user]

        class Sub(Base):
            @registry.cached()
            async def get(self, user: str) -> Any:
                return ["sub", *(await super().get(user))]

        class Heir(Sub):
            pass

        self.base, self.sub, self.heir = Base, Sub, Heir

    def got(self, made: Any) -> Any:
        return self.successResultOf(as_deferred(made.get("@a")))

    def test_an_override_may_call_what_it_overrides(self) -> None:
        for made, words in (
            (self.sub(), ["sub", "base"]),
            (self.heir(), ["sub", "base"]),
            (self.base(), ["base"]),
        ):
            with self.subTest(type(made).__name__):
                for version in (1, 1, 2):
                    if made.version != version:
                        made.version = version
                        self.registry.invalidate("get", ("@a",))
                    self.assertEqual(self.got(made), [*words, version, "@a"])

    def test_each_class_has_its_own_entries(self) -> None:
        sub = self.sub()
        self.got(sub)
        self.got(sub)
        stats = self.registry.stats()["get"]
        self.assertEqual((stats["size"], stats["misses"], stats["hits"]), (2, 2, 1))

    def test_the_inherited_one_first(self) -> None:
        sub = self.sub()
        inherited = self.successResultOf(as_deferred(super(self.sub, sub).get("@a")))
        self.assertEqual((inherited, self.got(sub)), (["base", 1, "@a"], ["sub", "base", 1, "@a"]))


class Decorated(SynchronousTestCase):
    def test_caches_static_methods(self) -> None:
        registry = caches_under(Clock())
        asked = []

        class Holder:
            @staticmethod
            @registry.cached()
            def get(user: str) -> str:
                asked.append(user)
                return user

        self.assertEqual([Holder.get("@a"), Holder().get("@a")], ["@a", "@a"])
        self.assertEqual(asked, ["@a"])

    def test_class_methods_are_refused(self) -> None:
        registry = caches_under(Clock())

        class Holder:
            @classmethod
            @registry.cached()
            def get(cls, user: str) -> str:
                return user

        self.assertRaises(InputError, lambda: Holder.get("@a"))  # which depends on the Python
        self.assertEqual(sum(len(cache.entries) for cache in registry), 0)
        for decorator in (classmethod, staticmethod):
            with self.assertRaisesRegex(BadCache, "cache 'get' .* put @staticmethod above"):
                registry.cached(name="get")(decorator(lambda user: user))  # type: ignore[type-var]

    def test_a_method_is_called_on_an_object(self) -> None:
        registry = caches_under(Clock())

        class Holder:
            @registry.cached()
            def get(self, user: str) -> str:
                return user

        with self.assertRaisesRegex(TypeError, "Holder.get is a method: call it on an object"):
            Holder.get(Holder(), "@a")

    def test_refuses_parameters_that_form_no_key(self) -> None:
        registry = caches_under(Clock())
        for function, parameter in (
            (lambda *users: users, r"\*users"),
            (lambda **users: users, r"\*\*users"),
            (lambda *, user: user, "user"),
        ):
            get = registry.cached(name="get")(function)
            with self.assertRaisesRegex(
                BadCache, f"cache 'get' .*: parameter '{parameter}' cannot"
            ):
                get(1)  # type: ignore[call-arg]

    def test_groups_must_be_a_tuple(self) -> None:
        with self.assertRaisesRegex(BadCache, r"write groups=\('per_room',\)"):
            caches_under(Clock()).cached(groups="per_room")  # type: ignore[arg-type]


class Registry(SynchronousTestCase):
    def setUp(self) -> None:
        self.registry = caches_under(Clock())

    def declare(self, name: str, **options: Any) -> Any:
        return self.registry.cached(name=name, **options)(lambda a: [a])

    def test_clear_leaves_what_never_changes(self) -> None:
        changing, fixed = self.declare("changing"), self.declare("fixed", immutable=True)
        first = changing("a"), fixed("a")
        self.registry.clear()
        self.assertIsNot(changing("a"), first[0])
        self.assertIs(fixed("a"), first[1])

    def test_lists_all_declarations(self) -> None:
        """All declarations of a name are listed, because only some may be valid."""
        self.declare("get", by_name=True)
        self.declare("get")
        self.declare("get")
        self.declare("other")("a")
        self.assertEqual([d.name for d in self.registry.declarations], ["get", "get", "other"])

    def test_refuses_declarations_that_are_not_accepted(self) -> None:
        def accept(declared: Declaration) -> None:
            if declared.name == "bad":
                raise BadCache(cache="bad", reason="the test says so")

        self.declare("good")
        self.registry.accept_only(accept)
        self.declare("good")("a")
        bad = self.declare("bad")
        self.assertRaises(BadCache, bad, "a")
        self.assertEqual(self.registry.named("bad"), ())
        self.assertRaises(BadCache, self.registry.accept_only, accept)

    def test_expansions_have_one_meaning(self) -> None:
        expansion = Expansion("moved", (Invalidates("get", whole),))
        self.registry.expand(expansion)
        with self.assertRaisesRegex(BadCache, "this name is expanded already"):
            self.registry.expand(expansion)

    def test_the_process_has_one_registry(self) -> None:
        self.assertIs(of_this_process.cached.__self__, of_this_process.cache_registry)  # type: ignore[attr-defined]
        registry = make_caches()
        made = []

        @registry.cached(ttl_s=60.0)
        async def get(user: str) -> str:
            made.append(user)
            return user

        for _ in range(2):
            self.assertEqual(self.successResultOf(as_deferred(get("@a"))), "@a")
        self.assertEqual(made, ["@a"])

"""The base class of cached functions, and of methods with separate state in each object."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Self

from synrepl.caches.cache import BadCache

Call = Callable[..., Any]


class PerObject:
    """Replaces a function, and makes the callable that does the work on first use.

    A method gets one callable per object, stored in the object, where the next access
    finds it without this descriptor. An overridden method, called through ``super()``,
    is stored under a separate name.

    :raises BadCache: a static or class method was decorated
    """

    def __init__(self, function: Call, name: str) -> None:
        if isinstance(function, (staticmethod, classmethod)):
            raise BadCache(
                cache=name,
                reason="put @staticmethod above the cache's decorator; what a @classmethod finds "
                "cannot be kept",
            )
        update_wrapper(self, function)
        self.function = function
        self.name = name
        self._owner: type | None = None
        self._attribute: str | None = None
        self._call: Call | None = None

    def __set_name__(self, owner: type, attribute: str) -> None:
        self._owner = owner
        self._attribute = attribute

    @property
    def is_method(self) -> bool:
        """Whether it is defined in a class."""
        return self._attribute is not None

    def __get__(self, instance: object, owner: type | None = None) -> Self | Call:
        return self if instance is None else self.of(instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self._call
        if call is None:
            call = self.of(None)
        return call(*args, **kwargs)

    def of(self, instance: object | None) -> Call:
        """The callable for an object; for a function, pass None.

        :raises BadCache: the object cannot store it
        """
        if self._attribute is None:
            if instance is not None:
                raise BadCache(
                    cache=self.name,
                    reason="a @classmethod, or what its class did not have from the beginning, "
                    "cannot be a method with a cache",
                )
            if self._call is None:
                self._call = self._make(None)
            return self._call
        if instance is None:
            raise TypeError(f"{self.function.__qualname__} is a method: call it on an object")
        kept = getattr(instance, "__dict__", None)
        if kept is None:
            raise BadCache(
                cache=self.name,
                reason=f"objects of {type(instance).__name__} have no __dict__ to keep it in",
            )
        attribute = self._attribute
        if inspect.getattr_static(type(instance), attribute, self) is not self:  # overridden
            attribute = f"{self._owner}.{attribute}"
        call: Call | None = kept.get(attribute)
        if call is None:
            call = kept[attribute] = self._make(instance)
        return call

    def _function_of(self, instance: object | None) -> Call:
        bound: Call = self.function if instance is None else self.function.__get__(instance)
        return bound

    def _make(self, instance: object | None) -> Call:
        raise NotImplementedError

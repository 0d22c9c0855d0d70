"""Maps the arguments of a call to a cache key."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from synrepl.caches.cache import BadCache
from synrepl.streams.effects import Key

_NOT_BY_POSITION = (
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


class Arguments:
    """The parameters of a cached function.

    :param method: whether the first parameter is the object, which is not part of the key
    :raises BadCache: a parameter is variadic or keyword-only
    """

    def __init__(self, name: str, function: Callable[..., Any], method: bool) -> None:
        parameters = list(inspect.signature(function).parameters.values())[int(method) :]
        for parameter in parameters:
            if parameter.kind in _NOT_BY_POSITION:
                raise BadCache(
                    cache=name,
                    reason=f"parameter {str(parameter)!r} cannot be given by position alone, "
                    "as a key needs it",
                )
        self._signature = inspect.Signature(parameters)
        self.names = tuple(self._signature.parameters)
        self.arity = len(self.names)

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Key:
        """The key of a call, with defaults filled in.

        :raises TypeError: the arguments do not match the signature
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args

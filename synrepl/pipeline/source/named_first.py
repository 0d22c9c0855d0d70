"""Has an error of ours reported by a Python worker of Spark without the worker's traceback.

Spark shows the user a worker's whole traceback, most of it its own frames, with our message in the
last line. The frames tell nothing about an error that names what, where and what to do.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from synrepl.core.errors import SynreplError

Call = TypeVar("Call", bound=Callable[..., Any])

#: Prefix of variables that Spark sets for its Python workers.
_OF_WORKERS = "PYTHON_WORKER_FACTORY_"

#: The variable by which a worker leaves tracebacks out of its report.
_HIDE = "SPARK_HIDE_TRACEBACK"


def named_first(call: Call) -> Call:
    """Decorate a method that Spark calls in a Python worker; it may be a generator function.

    A worker ends after its report, so that the setting lasts no longer than that. Exceptions of
    other classes keep their traceback.
    """
    if inspect.isgeneratorfunction(call):

        @wraps(call)
        def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with _without_traceback():
                yield from call(*args, **kwargs)

        return cast(Call, generate)

    @wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _without_traceback():
            return call(*args, **kwargs)

    return cast(Call, run)


@contextmanager
def _without_traceback() -> Iterator[None]:
    try:
        yield
    except SynreplError:
        if any(name.startswith(_OF_WORKERS) for name in os.environ):
            os.environ[_HIDE] = "1"
        raise

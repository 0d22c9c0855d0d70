"""Lookups: code that needs data from somewhere, written once for memory, SQL and Spark.

A lookup is a generator. It yields *rounds*: a round is a tuple of requests, each for a set of IDs, that can be
answered together. It is sent the answers in the same order, and returns its result. It does not know the
data source: :func:`run` calls the methods of a view in memory, :func:`run_async` awaits a function that
answers a whole round, such as one SQL statement. One round is one round trip.

An answer may contain more than was requested; what is missing from it does not exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

_T = TypeVar("_T")


class LookupRequest(Protocol):
    """A request for the data of a set of IDs."""

    def ask(self, view: Any, /) -> Any:
        """Answer it from a view."""
        ...


#: Requests that are answered together.
Round = tuple[LookupRequest, ...]

#: Yields rounds, is sent the answers to each, and returns its result.
Lookup = Generator[Round, Sequence[Any], _T]


def run(lookup: Lookup[_T], view: object) -> _T:
    """Run a lookup on a synchronous view.

    :param view: has the methods that the lookup's requests call
    """
    try:
        requests = next(lookup)
        while True:
            requests = lookup.send([request.ask(view) for request in requests])
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


async def run_async(lookup: Lookup[_T], answer: Callable[[Round], Awaitable[Sequence[Any]]]) -> _T:
    """Run a lookup on an asynchronous store.

    It awaits only ``answer``, so it runs under Twisted and under asyncio.

    :param answer: answers all requests of a round, in their order
    """
    try:
        requests = next(lookup)
        while True:
            requests = lookup.send(await answer(requests))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        lookup.close()

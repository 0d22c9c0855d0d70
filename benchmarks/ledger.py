"""The ledger: the cost of one more reservation with many open ones, compared with few."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.harness import Row, Scale, at_most, cpu, interleaved, ratio
from synrepl.positions.ledger import Ledger

FEW, MANY = 10, 100_000

#: Reservations made and settled while measuring.
_TIMES = 50_000


def with_open(count: int) -> tuple[Ledger, deque[int]]:
    """A ledger with so many open reservations, and their tokens."""
    ledger = Ledger(0)
    tokens = deque(range(1, count + 1))
    ledger.reserved(ledger.request(), tokens)
    return ledger, tokens


def newest_first(count: int, times: int) -> float:
    """CPU seconds of reserving a token and settling it, while the others stay open."""
    ledger, _ = with_open(count)

    def work() -> None:
        for token in range(count + 1, count + 1 + times):
            ledger.reserved(ledger.request(), (token,))
            ledger.settle((token,))

    return cpu(work)


def oldest_first(count: int, times: int) -> float:
    """CPU seconds of reserving a token and settling the oldest, so that the position advances."""
    ledger, tokens = with_open(count)

    def work() -> None:
        for token in range(count + 1, count + 1 + times):
            ledger.reserved(ledger.request(), (token,))
            tokens.append(token)
            ledger.settle((tokens.popleft(),))

    return cpu(work)


_ORDERS: dict[str, Callable[[int, int], float]] = {
    "the newest settles first": newest_first,
    "the oldest settles first": oldest_first,
}


def run(scale: Scale) -> Iterator[Row]:
    """Both orders in which transactions may end."""
    times = scale.of(_TIMES)
    gc.collect()
    for name, measure in _ORDERS.items():
        sides = {str(count): partial(measure, count, times) for count in (MANY, FEW)}
        found = interleaved(sides, scale.repetitions)
        yield ratio(
            f"reserve and settle, {name}",
            [seconds / times for seconds in found[str(MANY)]],
            [seconds / times for seconds in found[str(FEW)]],
            of=f"the cost with {FEW} open",
            measured_in=f"µs with {MANY:,} open",
            bound=at_most(2.0),
            scale=1e6,
        )

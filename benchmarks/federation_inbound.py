"""Transactions of other servers into a hundred rooms: signatures of requests and events, judging, storing.

CPU time is that of the process and of the PostgreSQL server together. The share of libraries is what libsodium, the JSON
libraries and the hashes take for the same events by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.child import Child
from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_least

#: Messages of a measurement.
_EVENTS = 5_000

_KINDS = {
    "spread": "transactions with 5 messages of each of 10 rooms",
    "scattered": "transactions with a message of each of 50 rooms, 10 servers in each room",
    "staged": "transactions with 5 messages of each of 10 rooms, all staged first",
}


def run(scale: Scale) -> Iterator[Row]:
    """Messages per second and core."""
    with (
        postgres() as dsn,
        Child("federation_inbound_process", dsn, scale.of(_EVENTS), scale.repetitions) as child,
    ):
        found = child.receive()
    for kind, what in _KINDS.items():
        figures = found[kind]
        rates = sorted(figures["events"] / seconds for seconds in figures["cpu"])
        middle = len(rates) // 2
        process = figures["process"] / sum(figures["cpu"])
        wall = figures["events"] / sorted(figures["wall"])[middle]
        yield Row(
            what,
            rates[middle],
            "messages a second and core",
            None if kind == "staged" else at_least(1_000),
            (rates[0], rates[-1]),
            f"{process:.0%} of the CPU time in the process, the rest in PostgreSQL;"
            f" {wall:,.0f} messages a second of wall time",
        )
    cpu = found["spread"]["cpu"]
    share = found["library"] / (sum(cpu) / len(cpu))
    yield Row(
        "share of libsodium, JSON libraries and hashes",
        100 * share,
        "% of the CPU time",
        detail=f"{1e6 * found['library'] / found['spread']['events']:.0f} µs a message",
    )

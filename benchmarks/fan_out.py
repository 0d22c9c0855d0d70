"""One master, many followers: deliveries per CPU second, compared with bare writes of the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.child import Child, ChildFailed
from benchmarks.harness import Row, Scale, at_least, interleaved, ratio

_HELLO = "NAME reader|PING 1|REPLICATE|"

#: Followers, facts of a full run, and the bound.
_CASES = ((1, 200_000, None), (16, 200_000, at_least(0.5)), (50, 100_000, at_least(0.5)))


def deliveries(kind: str, clients: int, facts: int) -> float:
    """Rows delivered per CPU second of the serving process.

    :raises ChildFailed: a client did not receive every byte
    """
    with Child("fan_out_server", kind, clients, facts) as server:
        port = int(server.receive()["port"])
        with Child("counting_reader", port, clients, _HELLO) as readers:
            readers.receive()
            sent, got = server.receive(), readers.receive()
    if not sent["bytes"] == got["fewest"] == got["most"]:
        raise ChildFailed(f"{kind}: {sent['bytes']} bytes were sent, {got} arrived")
    return float(sent["rows"] * clients / sent["cpu"])


def run(scale: Scale) -> Iterator[Row]:
    """1, 16 and 50 followers."""
    for clients, facts, bound in _CASES:
        count = scale.of(facts)
        sides = {kind: partial(deliveries, kind, clients, count) for kind in ("ours", "bare")}
        found = interleaved(sides, scale.repetitions)
        yield ratio(
            f"events rows to {clients} follower{'s' * (clients > 1)}",
            found["ours"],
            found["bare"],
            of="bare Twisted",
            measured_in="deliveries per CPU second",
            bound=bound,
        )

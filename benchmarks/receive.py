"""A worker: bytes from the master to typed rows in a handler, against ``json.loads`` of the rows.

It runs in one process without a socket, and measures only the worker's own work: from
``dataReceived`` to a handler that does nothing, including the checks of positions and gaps.
It has no caches; ``caches.py`` measures what dropping stale entries costs.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from twisted.internet.task import Clock
from twisted.protocols.basic import LineOnlyReceiver

from benchmarks.assembled import build_worker, completed, worker_config
from benchmarks.fan_out_server import GROUP, SERVER_NAME, lines_of
from benchmarks.harness import Row, Scale, at_most, cpu, interleaved, ratio
from benchmarks.recorded import BEFORE, WRITER, numbered, rdata_lines
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.worker import UpstreamPeer
from synrepl.caches.registry import Caches
from synrepl.services.handlers import Batch, Handler
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.synapse import SYNAPSE_STREAMS

#: Bytes that one read of a full socket returns.
PIECE = 64 * 1024


class CountingHandler(Handler):
    """Counts rows, to prove that all of them arrived."""

    def __init__(self) -> None:
        self.rows = 0

    async def on_rows(self, batch: Batch) -> None:
        """Count the rows."""
        self.rows += sum([len(fact.rows) for fact in batch.facts])


class NullTransport:
    """Discards everything that the worker sends."""

    disconnecting = False

    def write(self, data: bytes) -> None: ...

    def getPeer(self) -> None: ...

    def registerProducer(self, producer: object, streaming: bool) -> None: ...

    def setTcpNoDelay(self, enabled: bool) -> None: ...

    def setTcpKeepAlive(self, enabled: bool) -> None: ...

    def pauseProducing(self) -> None: ...

    def resumeProducing(self) -> None: ...


class Worker:
    """A worker that follows all streams, on a connection without a socket.

    :param caches: its caches, kept coherent; by default none
    """

    server = SERVER_NAME.encode()

    def __init__(self, caches: Caches | None = None) -> None:
        clock: Any = Clock()
        self.handler = CountingHandler()
        services = build_worker(
            TwistedScheduler(clock),
            worker_config(SERVER_NAME, "worker1"),
            Catalogue(SYNAPSE_STREAMS),
            [self.handler],
            caches=caches,
        )
        completed(services.begin())
        self.peer: UpstreamPeer = services.factory.buildProtocol(None)
        transport: Any = NullTransport()
        self.peer.makeConnection(transport)  # type: ignore[no-untyped-call]

    def feed(self, data: Sequence[bytes]) -> None:
        """Receive pieces of data."""
        received = self.peer.dataReceived
        for piece in data:
            received(piece)

    def feed_by_line(self, data: Sequence[bytes]) -> None:
        """Receive line by line, by the method that the peer inherits."""
        for piece in data:
            LineOnlyReceiver.dataReceived(self.peer, piece)  # type: ignore[no-untyped-call]


def pieces(data: bytes) -> list[bytes]:
    """Divide data as reads of a socket do."""
    return [data[at : at + PIECE] for at in range(0, len(data), PIECE)]


def run(scale: Scale) -> Iterator[Row]:
    """Measure rows of one busy stream, then of all streams as recorded."""
    facts = numbered(scale.of(150_000))
    groups = [facts[at : at + GROUP] for at in range(0, len(facts), GROUP)]
    lines = b"".join(lines_of(groups))
    greeting = f"SERVER {SERVER_NAME}\nPING 1\n".encode()
    events = greeting + f"POSITION events {WRITER} {BEFORE} {BEFORE}\n".encode()
    yield _compare("events rows to a handler", events, lines, scale)
    yield _compare_by_line("events rows, lines of a read together", events, lines, scale)
    positions, mixed = rdata_lines(scale.of(150_000))
    greeting += b"".join(positions)
    yield _compare("rows of all streams to a handler", greeting, b"".join(mixed), scale)


def _compare(name: str, greeting: bytes, lines: bytes, scale: Scale) -> Row:
    fed = pieces(lines)
    rows = [line.split(b" ", 4)[4] for line in lines.splitlines()]
    loads = json.loads
    gc.collect()
    gc.freeze()

    def ours() -> float:
        worker = Worker()
        worker.feed([greeting])
        seconds = cpu(lambda: worker.feed(fed))
        if worker.handler.rows != len(rows):
            raise AssertionError(f"{worker.handler.rows} of {len(rows)} rows came")
        return seconds / len(rows)

    def plain() -> float:
        return cpu(lambda: [loads(row) and None for row in rows]) / len(rows)

    found = interleaved({"ours": ours, "plain": plain}, scale.repetitions)
    gc.unfreeze()
    return ratio(
        name,
        found["ours"],
        found["plain"],
        of="json.loads",
        measured_in="µs a row",
        bound=at_most(2.0),
        scale=1e6,
    )


def _compare_by_line(name: str, greeting: bytes, lines: bytes, scale: Scale) -> Row:
    """Compare the peer's bulk path with ``LineOnlyReceiver``'s call per line."""
    fed, rows = pieces(lines), lines.count(b"\n")
    gc.collect()
    gc.freeze()

    def measure(feed: Callable[[Worker, Sequence[bytes]], None]) -> float:
        worker = Worker()
        worker.feed([greeting])
        seconds = cpu(lambda: feed(worker, fed))
        if worker.handler.rows != rows:
            raise AssertionError(f"{worker.handler.rows} of {rows} rows came")
        return seconds / rows

    found = interleaved(
        {
            "together": lambda: measure(Worker.feed),
            "by line": lambda: measure(Worker.feed_by_line),
        },
        scale.repetitions,
    )
    gc.unfreeze()
    return ratio(
        name,
        found["together"],
        found["by line"],
        of="a line at a time",
        measured_in="µs a row",
        bound=at_most(0.3),
        scale=1e6,
    )

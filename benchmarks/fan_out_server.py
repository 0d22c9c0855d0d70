"""The serving side of the fan-out: ``ours|bare CLIENTS FACTS``.

Reports ``{"port": p}``, waits for the clients, sends them the facts in groups, one per reactor turn,
closes the connections, and reports the CPU seconds of this process, the rows, and the bytes that each
client must have received.

``ours`` is a master's path from a settled fact of another process on. ``bare`` is a Twisted server that has the same
lines joined in memory, and does one ``transport.write`` per client and group.
"""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from twisted.internet import reactor as installed_reactor
from twisted.internet.protocol import Protocol, ServerFactory

from benchmarks.assembled import build_master, completed, master_config, store_at
from benchmarks.child import limit_lifetime, report
from benchmarks.recorded import BEFORE, WRITER, numbered
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.connection_table import ConnectionLimits
from synrepl.daemon.replication_listener import listener_factory
from synrepl.services.announcing.lines import Audience, LineEncoder
from synrepl.services.serving.master import FollowerState
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Fact, Generation
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse.events import EVENTS
from synrepl.wire.dialects import MODERN
from synrepl.wire.lines import DEFAULT_LINE_LIMIT

#: Facts that settle in one reactor turn, like those of one transaction.
GROUP = 100

#: Zope's interfaces say nothing to a type checker.
reactor: Any = installed_reactor

SERVER_NAME = "example.com"

#: Seconds between two polls of the store: none falls in a measurement, since the facts are
#: passed to the state of the stream, and are not in the store.
_POLL_S = 3600.0

_GREETING = len(
    f"SERVER {SERVER_NAME}\nPING 1234567890123\nPOSITION events {WRITER} {BEFORE} {BEFORE}\n"
)
_FAREWELL = len("ERROR server shutting down\n")


class Product:
    """A master with one listener."""

    def __init__(self, groups: Sequence[Sequence[Fact]]) -> None:
        self._groups = groups
        scheduler = TwistedScheduler(reactor)
        config = master_config(SERVER_NAME, poll_s=_POLL_S)
        store = completed(store_at(scheduler, EVENTS, WRITER, BEFORE))
        services = build_master(scheduler, config, store, Catalogue([EVENTS]), [])
        completed(services.begin())
        self._state = services.announcer.states[EVENTS.name]
        self._master = services.master
        (listener,) = config.listeners
        self.factory = listener_factory(
            scheduler, config, listener, self._master, ConnectionLimits(), services.slices
        )
        self._clients: Mapping[Any, FollowerState] = self._master.followers
        self.extra_bytes = _GREETING + _FAREWELL

    @property
    def clients(self) -> int:
        return sum(follower.streams is None for follower in self._clients.values())

    @property
    def full(self) -> bool:
        return any(client.transport.producerPaused for client in self._clients)

    def send(self, nth: int) -> None:
        group = self._groups[nth]
        last = group[-1].token
        self._state.found(WRITER, last, group)
        self._state.settled_upto({WRITER: last}, last)

    def close(self) -> None:
        self._master.shut_down()


class _BaselineClient(Protocol):
    """A plain connection, registered as a producer like the product's."""

    transport: Any

    def __init__(self, clients: list[_BaselineClient]) -> None:
        self._clients = clients

    def connectionMade(self) -> None:
        self.transport.setTcpNoDelay(True)
        self.transport.registerProducer(self, True)

    def dataReceived(self, data: bytes) -> None:
        if self not in self._clients:
            self._clients.append(self)

    def connectionLost(self, reason: object = None) -> None:
        self._clients.remove(self)

    def pauseProducing(self) -> None: ...

    def resumeProducing(self) -> None: ...


class Baseline:
    """The bare minimum: write these bytes to these sockets."""

    def __init__(self, groups: Sequence[bytes]) -> None:
        self._groups = groups
        self._clients: list[_BaselineClient] = []
        self.factory = ServerFactory()
        self.factory.protocol = partial(_BaselineClient, self._clients)
        self.extra_bytes = 0

    @property
    def clients(self) -> int:
        return len(self._clients)

    @property
    def full(self) -> bool:
        return any(client.transport.producerPaused for client in self._clients)

    def send(self, nth: int) -> None:
        data = self._groups[nth]
        for client in self._clients:
            client.transport.write(data)

    def close(self) -> None:
        for client in list(self._clients):
            client.transport.unregisterProducer()
            client.transport.loseConnection()


def lines_of(groups: Sequence[Sequence[Fact]]) -> list[bytes]:
    """The joined lines of each group."""
    audience = Audience(MODERN, Generation.MODERN, DEFAULT_LINE_LIMIT)
    encoder = LineEncoder(audience, {"events": RowCodec(EVENTS)})
    joined = []
    for group in groups:
        chunks = encoder.live(EVENTS, WRITER, group[0].token - 1, group[-1].token, group)
        joined.append(b"".join([chunk.data for chunk in chunks]))
    return joined


def cpu_seconds() -> float:
    """User and system time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def drive(
    subject: Product | Baseline, clients: int, groups: int, done: Callable[[float], None]
) -> None:
    """Wait for the clients, send one group per turn unless buffers are full, and close."""
    later = reactor.callLater
    started = 0.0

    def wait() -> None:
        nonlocal started
        if subject.clients < clients:
            later(0.01, wait)
            return
        started = cpu_seconds()
        turn(0)

    def turn(nth: int) -> None:
        if subject.full:
            later(0.001, turn, nth)
        elif nth == groups:
            subject.close()
            ended()
        else:
            subject.send(nth)
            later(0, turn, nth + 1)

    def ended() -> None:
        if subject.clients:
            later(0.001, ended)
        else:
            done(cpu_seconds() - started)

    wait()


def main(arguments: list[str]) -> None:
    """Serve once."""
    limit_lifetime()
    kind, clients, count = arguments[0], int(arguments[1]), int(arguments[2])
    facts = numbered(count)
    groups = [facts[at : at + GROUP] for at in range(0, count, GROUP)]
    lines = lines_of(groups)
    subject = Product(groups) if kind == "ours" else Baseline(lines)
    port = reactor.listenTCP(0, subject.factory, interface="127.0.0.1")

    def done(seconds: float) -> None:
        expected = sum(map(len, lines)) + subject.extra_bytes
        rows = sum(len(fact.rows) for fact in facts)
        report({"cpu": seconds, "rows": rows, "bytes": expected})
        reactor.stop()

    gc.freeze()
    drive(subject, clients, len(groups), done)
    report({"port": port.getHost().port})
    reactor.run()


if __name__ == "__main__":
    main(sys.argv[1:])

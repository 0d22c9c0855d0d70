"""The product's own processes as they play in the simulator, wired as the daemons wire them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from synrepl.adapters.tcp_master import MasterFactory
from synrepl.adapters.tcp_worker import WorkerFactory
from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Token
from synrepl.positions.ledger import Ledger
from synrepl.services import announce, follow, lane, serve, stream_state
from synrepl.services.announce import Announcer
from synrepl.services.deliver import Delivery
from synrepl.services.follow import Follower
from synrepl.services.handlers import Batch, Handler, TransactionalHandler
from synrepl.services.lane import LINEAR
from synrepl.services.publish import Publisher
from synrepl.services.reservation import Reservation
from synrepl.services.serve import Master
from synrepl.services.write import Settled, StreamWriter
from synrepl.storage.database import Transaction
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec
from synrepl.testing.simulator.parts import (
    LINE_LIMIT,
    QUEUED_LINES,
    FollowerKind,
    Key,
    Place,
    Receiver,
)
from synrepl.testing.simulator.position_checker import Movements
from synrepl.wire.dialects import LEGACY, MODERN
from synrepl.wire.session import Limits

SERVER_NAME = "simulated.example"
MASTER = "master"

#: Seconds between two records of a follower's positions, as in the worker.
RECORD_S = 1.0

#: Sizes of pages and buffers that a few facts reach: module, constant, value.
_SMALL: Sequence[tuple[Any, str, float]] = (
    (announce, "PAGE_ROWS", 3),
    (announce, "LOOK_AGAIN_S", 0.1),
    (serve, "PAGE_ROWS", 3),
    (lane, "PAGE_ROWS", 3),
    (follow, "HIGH_WATER_ROWS", 6),
    (follow, "LOW_WATER_ROWS", 2),
    (stream_state, "HELD_ROWS", 4),
)

_LIMITS = Limits(line=LINE_LIMIT, peer_line=LINE_LIMIT, queued_lines=QUEUED_LINES)


class Product:
    """Plays all parts with the product's services (see ``synrepl.testing.simulator.parts``)."""

    @contextmanager
    def sizes(self, small: bool) -> Iterator[None]:
        """Make pages and buffers small for a while."""
        before = [(module, name, getattr(module, name)) for module, name, _ in _SMALL]
        for module, name, value in _SMALL if small else ():
            setattr(module, name, value)
        try:
            yield
        finally:
            for module, name, value in before:
                setattr(module, name, value)

    def master(self, place: Place, watch: Callable[[Movements], Movements]) -> SimulatedMaster:
        """A master, whose announcements go through ``watch``."""
        return SimulatedMaster(place, watch)

    def writer(self, place: Place, name: str) -> SimulatedWriter:
        """A process that only writes."""
        return SimulatedWriter(place, name, Unannounced())

    def follower(
        self, place: Place, name: str, kind: FollowerKind, receiver: Receiver
    ) -> SimulatedFollower:
        """A follower of all streams."""
        return SimulatedFollower(place, name, kind, receiver)


class Unannounced:
    """A process without followers announces nothing: over TCP the master does."""

    def adopt(self, stream: Stream, writer: str, ledger: Ledger) -> None:
        """The writer has its name."""

    def settled(self, stream: Stream, tokens: Sequence[Token], facts: Sequence[Fact]) -> None:
        """Tokens are settled."""

    def recovered(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """Facts were found."""


class SimulatedWriter:
    """A process's writer."""

    def __init__(self, place: Place, name: str, settled: Settled) -> None:
        self._writer = StreamWriter(
            place.life, place.store, name, place.catalogue, settled, place.log
        )

    async def start(self) -> None:
        """Take the name."""
        await self._writer.start()

    async def append(
        self, stream: Stream, facts: Sequence[Sequence[Row]], key: str | None
    ) -> Sequence[Token]:
        """Append facts."""
        return (await self._writer.append(stream, facts, key)).tokens

    async def reserve(self, stream: Stream, count: int) -> Reservation:
        """Take tokens before writing."""
        return await self._writer.reserve(stream, count)

    async def stop(self) -> None:
        """Give the name back."""
        await self._writer.stop()


class SimulatedMaster:
    """Wired like :class:`synrepl.daemon.master.MasterProcess`."""

    def __init__(self, place: Place, watch: Callable[[Movements], Movements]) -> None:
        life, catalogue = place.life, place.catalogue
        publisher = Publisher(life, {stream.name: RowCodec(stream) for stream in catalogue})
        self._announcer = Announcer(life, place.store, catalogue, watch(publisher), place.log)
        self.writer = SimulatedWriter(place, MASTER, self._announcer)
        master = Master(
            life,
            catalogue,
            self._announcer.states,
            publisher,
            place.store,
            lambda source, command: None,
        )
        self._master = master
        self.listener = MasterFactory(life, master, SERVER_NAME, limits=_LIMITS)

    async def start(self) -> None:
        """Returns once connections can be taken."""
        await self.writer.start()
        await self._announcer.start()

    def wake(self, stream: str) -> None:
        """A NOTIFY has arrived."""
        self._announcer.wake(stream)

    def positions(self) -> Mapping[Key, Token]:
        """Where every writer of every stream stands."""
        found: dict[Key, Token] = {}
        for name, state in self._announcer.states.items():
            found[name, LINEAR] = state.linear
            for writer, position in state.positions.items():
                found[name, writer] = position
        return found

    async def stop(self) -> None:
        """End in good order."""
        self._master.shut_down()
        await self._announcer.stop()
        await self.writer.stop()


class SimulatedFollower:
    """Wired like :class:`synrepl.daemon.worker.WorkerProcess`."""

    def __init__(self, place: Place, name: str, kind: FollowerKind, receiver: Receiver) -> None:
        self._life: Scheduler = place.life
        self._log = place.log
        handler = _ExactlyOnce(receiver) if kind.exactly_once else _AtLeastOnce(receiver)
        self._delivery = Delivery(
            place.life,
            [handler],
            place.log,
            name if kind.named else None,
            place.database if kind.named else None,
        )
        self._follower = Follower(
            place.life,
            place.catalogue,
            place.store,
            self._delivery,
            place.log,
            earliest=kind.earliest,
        )
        dialect = LEGACY if kind.legacy else MODERN
        self.dialler = WorkerFactory(
            place.life, self._follower, name, SERVER_NAME, dialect, place.log.info, _LIMITS
        )
        self.dialler.clock = place.life  # type: ignore[assignment]  # all it needs is callLater
        self.dialler.jitter = None  # type: ignore[assignment]  # only the seed decides

    async def start(self) -> None:
        """Read what is on record, and keep the record up to date."""
        await self._delivery.start()
        self._life.spawn("record positions", self._record())

    def positions(self) -> Mapping[Key, Token]:
        """Where it stands."""
        return self._follower.positions

    async def _record(self) -> None:
        while True:
            await self._life.sleep(RECORD_S)
            try:
                await self._delivery.record()
            except SynreplError as error:
                self._log.warn("cannot record positions: {error}", error=error)


class _AtLeastOnce(Handler):
    """A handler outside of the database."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    async def on_rows(self, batch: Batch) -> None:
        """Pass on."""
        await self._receiver.handle(
            batch.stream, batch.writer, batch.after, batch.upto, batch.facts
        )


class _ExactlyOnce(TransactionalHandler):
    """A handler whose effects commit together with the position."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def apply(self, txn: Transaction, batch: Batch) -> None:
        """Pass on."""
        self._receiver.apply(txn, batch.stream, batch.writer, batch.after, batch.upto, batch.facts)

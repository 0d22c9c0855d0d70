"""The product's own processes as they play in the simulator, wired as the daemons wire them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from synrepl.adapters.tcp_master import MasterFactory
from synrepl.adapters.tcp_worker import WorkerFactory
from synrepl.core import slices
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Range, Token
from synrepl.daemon.simulation_bus import (
    SERVER_NAME,
    SimulatedMasterBus,
    SimulatedVoice,
    publisher_of,
)
from synrepl.daemon.simulation_writer import SimulatedWriter, WriterProcess, coherence_of
from synrepl.services import trim
from synrepl.services.announcing import announce, stream_state
from synrepl.services.announcing.announce import Announcer
from synrepl.services.announcing.stream_state import Movements
from synrepl.services.bus.both import BothMovements
from synrepl.services.coherence import invalidate
from synrepl.services.coherence.coherent import CoherentMovements
from synrepl.services.following import catch_up, follow, lane
from synrepl.services.following.consumer import StartAt, Subscription
from synrepl.services.following.deliver import Delivery
from synrepl.services.following.follow import Follower
from synrepl.services.following.leases import FollowerLease
from synrepl.services.following.possible_tokens import PossibleTokens
from synrepl.services.following.source import LINEAR, Backlog, StorePositions, in_order
from synrepl.services.handlers import Batch, Handler, TransactionalHandler
from synrepl.services.membership.membership import Membership
from synrepl.services.serving import client_catch_up
from synrepl.services.serving.serve import Master
from synrepl.services.trim import Trimmer
from synrepl.services.waiting.own_positions import FollowerPositions
from synrepl.services.waiting.position_waiters import PositionWaiters
from synrepl.services.waiting.wait_for import WaitFor
from synrepl.storage.database import Database, Transaction
from synrepl.testing.simulator.clock import Life
from synrepl.testing.simulator.parts import (
    LINE_LIMIT,
    QUEUED_LINES,
    FollowerKind,
    HandlerKind,
    Key,
    Place,
    Receiver,
    Watch,
)
from synrepl.wire.dialects import LEGACY, MODERN, Dialect
from synrepl.wire.session import Limits

MASTER = "master"

#: Seconds between two records of a follower's positions, as in the worker.
RECORD_S = 1.0

#: Sizes of pages and buffers that a few facts reach: module, constant, value.
_SMALL: Sequence[tuple[Any, str, float]] = (
    (announce, "PAGE_ROWS", 3),
    (client_catch_up, "PAGE_ROWS", 3),
    (client_catch_up, "PAGES_AT_A_TIME", 1),
    (slices, "UNITS", 15),
    (lane, "PAGE_ROWS", 3),
    (catch_up, "PAGE_ROWS", 3),
    (follow, "HIGH_WATER_ROWS", 6),
    (follow, "LOW_WATER_ROWS", 2),
    (stream_state, "HELD_ROWS", 4),
    (invalidate, "MAX_KEYS", 2),
    (trim, "AT_ONCE", 2),
)

#: Looks at a stream that is held up are many, and all alike.
_RARE: Sequence[tuple[Any, str, float]] = (
    (announce, "LOOK_AGAIN_S", 0.1),
    (announce, "LOOK_SELDOM_S", 0.5),
)

_LIMITS = Limits(line=LINE_LIMIT, peer_line=LINE_LIMIT, queued_lines=QUEUED_LINES)


class Product:
    """Plays all parts with the product's services (see ``synrepl.testing.simulator.parts``)."""

    @contextmanager
    def sizes(self, small: bool) -> Iterator[None]:
        """Make pages and buffers small for a while."""
        sizes = (*_SMALL, *_RARE) if small else _RARE
        before = [(module, name, getattr(module, name)) for module, name, _ in sizes]
        for module, name, value in sizes:
            setattr(module, name, value)
        try:
            yield
        finally:
            for module, name, value in before:
                setattr(module, name, value)

    def master(self, place: Place, watch: Watch) -> SimulatedMaster:
        """A master, whose announcements go through ``watch``."""
        return SimulatedMaster(place, watch)

    def writer(self, place: Place, name: str, watch: Watch) -> WriterProcess:
        """A process that only writes."""
        return WriterProcess(place, name, watch)

    def follower(
        self,
        place: Place,
        name: str,
        kind: FollowerKind,
        handlers: Sequence[tuple[HandlerKind, Receiver]],
        watch: Watch,
    ) -> SimulatedFollower:
        """A follower of all streams."""
        return SimulatedFollower(place, name, kind, handlers, watch)

    def membership(self, life: Life, database: Database) -> Membership:
        """An operator at the database."""
        return Membership(life, database)


class SimulatedMaster:
    """Wired like :class:`synrepl.daemon.master.MasterProcess`."""

    def __init__(self, place: Place, watch: Watch) -> None:
        life, catalogue = place.life, place.catalogue
        publisher = publisher_of(place)
        coherence = self._coherence = coherence_of(place)
        self._bus: SimulatedMasterBus | None = None
        movements: Movements = publisher
        if place.bus is not None:
            self._bus = SimulatedMasterBus(place, place.bus, MASTER)
            movements = BothMovements(publisher, self._bus.spokesman)
        movements = watch(movements)
        if coherence is not None:
            movements = CoherentMovements(coherence, MASTER, movements)
        self._store = place.store
        announcer = self._announcer = Announcer(
            life,
            place.store,
            catalogue,
            movements,
            place.log,
            failed_over=lambda incarnation: self.writer.failed_over(incarnation),
        )
        if self._bus is not None:
            self._bus.spokesman.begin(announcer.states)
        self.writer = SimulatedWriter(place, MASTER, announcer, coherence)
        self._life = life
        self._trimmer = Trimmer(
            life,
            place.store,
            [stream for stream in catalogue if stream.ephemeral],
            lambda stream: announcer.states[stream.name].linear,
            place.log,
            every_s=place.retention.every_s,
            keep_s=place.retention.keep_s,
            max_s=place.retention.max_s,
        )
        master = Master(
            life,
            catalogue,
            announcer.states,
            publisher,
            place.store,
            lambda source, command: None,
            place.log,
        )
        self._master = master
        self.listener = MasterFactory(life, master, SERVER_NAME, limits=_LIMITS)

    async def start(self) -> None:
        """Returns once connections can be taken."""
        await self._store.confirm({})
        await self.writer.start()
        await self._announcer.start()
        if self._coherence is not None:
            for (stream, writer), position in self.positions().items():
                self._coherence.begin(stream, writer, position)
            self._life.spawn("trim", self._trimmer.run())
        if self._bus is not None:
            self._bus.start()

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
        if self._bus is not None:
            await self._bus.stop()
        await self._announcer.stop()
        await self.writer.stop()


class SimulatedFollower:
    """Wired like :class:`synrepl.daemon.worker.WorkerProcess`."""

    def __init__(
        self,
        place: Place,
        name: str,
        kind: FollowerKind,
        handlers: Sequence[tuple[HandlerKind, Receiver]],
        watch: Watch,
    ) -> None:
        life, retention = place.life, place.retention
        self._life = life
        self._log = place.log
        waiters = PositionWaiters(life)
        self._lease: FollowerLease | None = None
        if kind.named:
            self._lease = FollowerLease(life, place.store, name, None, retention.lease_s, place.log)
        coherence = coherence_of(place, leaves_out=kind.legacy)
        voice = SimulatedVoice(place, name, watch)
        self.writer: SimulatedWriter | None = None
        if kind.writes:
            self.writer = SimulatedWriter(place, name, voice.settled, coherence)
        self._delivery = Delivery(
            life,
            [_subscription(kind, each, receiver) for each, receiver in handlers],
            place.log,
            name if kind.named else None,
            place.database if kind.named else None,
            waiters,
            coherence,
            backlog=Backlog(
                in_order(place.catalogue, foreign=False), place.store, StorePositions(place.store)
            ),
            linear=kind.legacy,
            catalogue=place.catalogue,
        )
        follower = self._follower = Follower(
            life,
            place.catalogue,
            place.store,
            self._delivery,
            place.log,
            earliest=kind.earliest,
            tokens=PossibleTokens(life, place.store, place.log),
        )
        self._bus = voice.bus(follower)
        self.dialler: WorkerFactory | None = None
        if self._bus is None:
            self.dialler = self._dial(name, LEGACY if kind.legacy else MODERN)
        own = FollowerPositions(follower, self._delivery, self._connected, None, linear=kind.legacy)
        self._waiting = WaitFor(place.catalogue, own, waiters)

    def _dial(self, name: str, dialect: Dialect) -> WorkerFactory:
        life, log = self._life, self._log.info
        dialler = WorkerFactory(life, self._follower, name, SERVER_NAME, dialect, log, _LIMITS)
        dialler.clock = life  # type: ignore[assignment]  # all it needs is callLater
        dialler.jitter = None  # type: ignore[assignment]  # only the seed decides
        return dialler

    def _connected(self) -> bool:
        if self._bus is not None:
            return self._bus.standing
        return self.dialler is not None and self.dialler.handshaken

    async def start(self) -> None:
        """Take the lease and the name, read what is on record, and keep all up to date."""
        if self._lease is not None:
            await self._lease.start()
        if self.writer is not None:
            await self.writer.start()
        await self._delivery.start()
        await self._delivery.tell_losses()
        if self._bus is not None:
            self._bus.start()
            if self.writer is not None:
                self.writer.skip_idle()
        self._life.spawn("record positions", self._record())

    def positions(self) -> Mapping[Key, Token]:
        """Where it stands."""
        return self._follower.positions

    async def wait_for(
        self, stream: str, writer: str | None, token: Token, timeout_s: float
    ) -> None:
        """Wait until it stands there."""
        await self._waiting.wait_for(stream, writer, token, timeout_s)

    async def _record(self) -> None:
        while True:
            await self._life.sleep(RECORD_S)
            try:
                await self._delivery.progress.record()
            except SynreplError as error:
                self._log.warn("cannot record positions: {error}", error=error)


def _subscription(kind: FollowerKind, handler: HandlerKind, receiver: Receiver) -> Subscription:
    """A handler, with the view and the start that it is to have."""
    view = None
    if handler.other_view:
        view = "per_writer" if kind.legacy else "linear"
    base: Any = _ExactlyOnce if handler.exactly_once else _AtLeastOnce
    made = type(base.__name__, (base,), {"view": view})(receiver)
    earliest = handler.late or kind.earliest
    return Subscription(made, handler.name, StartAt.EARLIEST if earliest else StartAt.NOW)


class _AtLeastOnce(Handler):
    """A handler outside of the database."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    async def on_rows(self, batch: Batch) -> None:
        """Pass on."""
        await self._receiver.handle(
            batch.stream, batch.writer, batch.after, batch.upto, batch.facts
        )

    async def on_reset(
        self, stream: str, writer: str, position: Token, lost: Range | None = None
    ) -> None:
        """Pass on."""
        self._receiver.reset(stream, writer, position, lost)


class _ExactlyOnce(TransactionalHandler):
    """A handler whose effects commit together with the position."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def apply(self, txn: Transaction, batch: Batch) -> None:
        """Pass on."""
        self._receiver.apply(txn, batch.stream, batch.writer, batch.after, batch.upto, batch.facts)

    async def on_reset(
        self, stream: str, writer: str, position: Token, lost: Range | None = None
    ) -> None:
        """Pass on."""
        self._receiver.reset(stream, writer, position, lost)

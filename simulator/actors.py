"""Simulated processes across restarts: started, killed by the seed, started again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Protocol

from simulator.application import Application
from simulator.application_data import ApplicationData, VersionFact
from simulator.clock import Process, VirtualClock
from simulator.follower_checker import Checkpoint, FollowerChecker, PositionReportChecker
from simulator.follower_database import FollowerTransaction
from simulator.interfaces import (
    FollowerKind,
    FollowerService,
    HandlerKind,
    Key,
    MasterService,
    ProcessEnvironment,
    ServiceFactory,
    WriterService,
)
from simulator.network import Network
from simulator.position_checker import AnnouncementListener, PositionChecker
from simulator.transcript import Transcript
from synrepl.core.errors import SynreplError, Unavailable
from synrepl.core.tokens import Range, Token
from synrepl.streams.definition import Fact

#: Makes the environment of a new process, with or without the bus.
NewEnvironment = Callable[[Process, bool], ProcessEnvironment]

#: Wraps an announcement listener with a checker.
NewPositionChecker = Callable[[AnnouncementListener], PositionChecker]


class RecordedFollowers(Protocol):
    """The recorded positions of followers."""

    def own(self, follower: str) -> Mapping[Key, Token]:
        """The recorded positions of a follower."""

    def handler(self, follower: str, handler: str) -> Mapping[Key, Token]:
        """The recorded positions of one of its handlers."""


#: Makes a new process by its name.
NewProcess = Callable[[str], Process]


class NotRunning(Unavailable):
    """process {name} does not run; ask again when it does"""


class HandlerFailed(Exception):
    """An exception of a user's handler."""


class Supervisor:
    """Starts processes, and restarts them some time after they end, as systemd does."""

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        transcript: Transcript,
        new_process: NewProcess,
        new_environment: NewEnvironment,
    ) -> None:
        self._clock = clock
        self._random = random
        self._transcript = transcript
        self._new_process = new_process
        self._new_environment = new_environment

    def start(self, actor: Actor) -> None:
        """Start a new process for an actor."""
        if actor.process is not None or actor.retired:
            return
        process = actor.process = self._new_process(actor.name)
        process.spawn("start", self._start(actor, process))

    def kill(self, actor: Actor, what: str = "killed", restart_within_s: float = 3.0) -> None:
        """Kill an actor's process; it is restarted within ``restart_within_s``, unless it is retired."""
        if actor.process is None:
            return
        process, actor.process, actor.ready, actor.application = actor.process, None, False, None
        self._transcript.add(actor.name, "{what}", what=what)
        process.kill()
        if not actor.retired:
            self._clock.callLater(self._random.random() * restart_within_s, self.start, actor)

    async def _start(self, actor: Actor, process: Process) -> None:
        try:
            environment = self._new_environment(process, actor.bus)
            actor.application = environment.application
            await actor.start(environment, process)
        except SynreplError as error:
            self.kill(actor, f"cannot start: {error}")
        else:
            actor.ready = True
            self._transcript.add(actor.name, "is ready")

    async def stop(self, actor: Actor) -> None:
        """Stop an actor's process gracefully."""
        process = actor.process
        try:
            await actor.stop()
        except SynreplError as error:
            self._transcript.add(actor.name, "stopped badly: {error}", error=error)
        if actor.process is process:
            self.kill(actor, "stopped")


class Actor:
    """A process of the deployment, across restarts.

    :param bus: whether it is connected to Redis
    :ivar process: the running process, if any
    :ivar application: the application of the running process, set before it is ready
    :ivar ready: whether its start has succeeded
    :ivar retired: whether it is never started again
    """

    def __init__(self, name: str, bus: bool) -> None:
        self.name = name
        self.bus = bus
        self.process: Process | None = None
        self.application: Application | None = None
        self.ready = False
        self.retired = False

    async def start(self, environment: ProcessEnvironment, process: Process) -> None:
        """Start; returns when the process is ready."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop gracefully."""


class _PositionCheckers:
    """The checkers of what one process announces."""

    def __init__(self, wrap_listener: NewPositionChecker) -> None:
        self._wrap_listener = wrap_listener
        self._watched: list[PositionChecker] = []

    def __call__(self, listener: AnnouncementListener) -> PositionChecker:
        self._watched.append(self._wrap_listener(listener))
        return self._watched[-1]

    def started(self, positions: Mapping[Key, Token]) -> None:
        """The process is at these positions, and announces from now on."""
        for watched in self._watched:
            watched.started(positions)


class WriterActor(Actor):
    """A process that only writes.

    :param wrap_listener: wraps its announcement listener with a checker
    """

    def __init__(
        self,
        name: str,
        service_factory: ServiceFactory,
        wrap_listener: NewPositionChecker,
        bus: bool,
    ) -> None:
        super().__init__(name, bus)
        self._service_factory = service_factory
        self._wrap_listener = wrap_listener
        self._service: WriterService | None = None

    @property
    def writer(self) -> WriterService | None:
        """Its writer."""
        return self._service

    @property
    def positions(self) -> Mapping[Key, Token]:
        """Its positions according to itself; empty while it is down."""
        return self._service.positions() if self.ready and self._service is not None else {}

    async def start(self, environment: ProcessEnvironment, process: Process) -> None:
        """Take the writer name."""
        wrap_listener = _PositionCheckers(self._wrap_listener)
        writer = self._service_factory.writer(environment, self.name, wrap_listener)
        await writer.start()
        wrap_listener.started(writer.positions())
        self._service = writer

    async def stop(self) -> None:
        """Release the writer name."""
        assert self._service is not None
        await self._service.stop()


class MasterActor(Actor):
    """The master.

    :param wrap_listener: wraps its announcement listener with a checker
    """

    def __init__(
        self,
        name: str,
        service_factory: ServiceFactory,
        network: Network,
        wrap_listener: NewPositionChecker,
        bus: bool,
    ) -> None:
        super().__init__(name, bus)
        self._service_factory = service_factory
        self._network = network
        self._wrap_listener = wrap_listener
        self._service: MasterService | None = None

    @property
    def writer(self) -> WriterService | None:
        """Its own writer."""
        return None if self._service is None else self._service.writer

    async def start(self, environment: ProcessEnvironment, process: Process) -> None:
        """Start, then accept connections."""
        wrap_listener = _PositionCheckers(self._wrap_listener)
        service = self._service_factory.master(environment, wrap_listener)
        await service.start()
        wrap_listener.started(service.positions())
        self._service = service
        self._network.listen(process, service.listener)

    async def stop(self) -> None:
        """Disconnect the followers, and release the writer name."""
        assert self._service is not None
        self._network.close()
        await self._service.stop()

    def notify(self, stream: str) -> None:
        """Deliver a NOTIFY, if the master is ready."""
        if self.ready and self._service is not None:
            self._service.wake(stream)

    @property
    def positions(self) -> Mapping[Key, Token]:
        """The positions it reports for all writers; empty while it is down."""
        return self._service.positions() if self.ready and self._service is not None else {}


class HandlerActor:
    """A handler of a follower.

    :ivar checker: checks what the handler receives
    :ivar faults_off: whether it has stopped failing
    """

    def __init__(
        self, kind: HandlerKind, follower: FollowerActor, checker: FollowerChecker, random: Random
    ) -> None:
        self.kind = kind
        self.checker = checker
        self.faults_off = False
        self._follower = follower
        self._random = random

    async def handle(
        self, stream: str, writer: str, after: Token, upto: Token, facts: Sequence[Fact]
    ) -> None:
        """Handle a batch: takes time, and sometimes fails."""
        follower = self._follower
        if follower.kind.slow_s and follower.process is not None:
            await follower.process.sleep(self._random.random() * follower.kind.slow_s)
        self._perhaps_fail()
        self.checker.applied(stream, writer, after, upto, facts)

    def apply(
        self,
        txn: object,
        stream: str,
        writer: str,
        after: Token,
        upto: Token,
        facts: Sequence[Fact],
    ) -> None:
        """Apply a batch in a transaction; takes effect when it commits."""
        assert isinstance(txn, FollowerTransaction)
        self._perhaps_fail()
        txn.effects.append(partial(self.checker.applied, stream, writer, after, upto, facts))
        txn.effects.append(partial(self._follower.handled, stream, writer, upto, facts))

    def reset(self, stream: str, writer: str, position: Token, lost: Range | None) -> None:
        """Facts are lost, by trimming or by a failover."""
        if lost is None:
            self.checker.lost_by_trim(stream, writer, position)
        else:
            self.checker.lost_by_failover(stream, writer, lost)

    def _perhaps_fail(self) -> None:
        if not self.faults_off and self._random.random() < self._follower.kind.fails:
            raise HandlerFailed()


class FollowerActor(Actor):
    """A follower.

    :param make_checker: makes the checker of one of its handlers
    :param report_checker: checks the positions that it reports
    :param on_record: the recorded positions of followers and handlers
    :param data: the data that its transactional handler changes
    :param wrap_listener: wraps its announcement listener, as a writer, with a checker
    :ivar handlers: the handlers of the running process
    """

    def __init__(
        self,
        name: str,
        service_factory: ServiceFactory,
        network: Network,
        kind: FollowerKind,
        make_checker: Callable[[HandlerKind], FollowerChecker],
        report_checker: PositionReportChecker,
        random: Random,
        on_record: RecordedFollowers,
        data: ApplicationData,
        wrap_listener: NewPositionChecker,
    ) -> None:
        super().__init__(name, kind.bus)
        self.kind = kind
        self._service_factory = service_factory
        self._network = network
        self._report_checker = report_checker
        self._on_record = on_record
        self._data = data
        self._wrap_listener = wrap_listener
        self._service: FollowerService | None = None
        self._new_process = 0
        self._joined = False
        self._all = [HandlerActor(each, self, make_checker(each), random) for each in kind.handlers]
        self.handlers: list[HandlerActor] = []

    async def start(self, environment: ProcessEnvironment, process: Process) -> None:
        """Read recorded positions, then connect."""
        self._new_process += 1
        self.handlers = [each for each in self._all if self._new_process > 1 or not each.kind.late]
        # Until it has started with a new handler, its recorded position may move back for that.
        joining = not self._joined and any(each.kind.late for each in self.handlers)
        self._report_checker.restarted(
            self._on_record.own(self.name) if self.kind.named and not joining else {}
        )
        for each in self.handlers:
            each.checker.restarted(self._of_handler(each))
        wrap_listener = _PositionCheckers(self._wrap_listener)
        handlers = [(each.kind, each) for each in self.handlers]
        service = self._service_factory.follower(
            environment, self.name, self.kind, handlers, wrap_listener
        )
        await service.start()
        if joining:
            self._joined = True
            self._report_checker.lowered()
        if service.writer is not None:
            wrap_listener.started(service.writer.positions())
        self._service = service
        if service.client_factory is not None:
            self._network.connect(process, service.client_factory)

    @property
    def writer(self) -> WriterService | None:
        """Its writer; None if it does not write."""
        return None if self._service is None else self._service.writer

    @property
    def positions(self) -> Mapping[Key, Token]:
        """Its positions according to itself; empty while it is down."""
        return self._service.positions() if self.ready and self._service is not None else {}

    def check(self) -> None:
        """Compare reported and recorded positions with what its handlers received."""
        report_checker = {"position": self.positions}
        if self.kind.named:
            report_checker["record"] = self._on_record.own(self.name)
        for what, positions in report_checker.items():
            if self.ready or what != "record":
                self._report_checker.reported(what, positions)
                for each in self.handlers:
                    each.checker.reported(what, positions)
        for each in self.handlers:
            each.checker.on_record(self._of_handler(each))

    def checkpoint(self) -> Sequence[Checkpoint]:
        """What its handlers have received so far."""
        return [each.checker.checkpoint() for each in self._all]

    def failed_over(self, floors: Mapping[str, Token], standby: Sequence[Checkpoint]) -> None:
        """A standby was promoted.

        :param floors: by stream: positions below are from before the failover
        :param standby: what handlers had received when the standby received its last data
        """
        self._report_checker.failed_over(floors)
        for each, checkpoint in zip(self._all, standby, strict=True):
            each.checker.failed_over(floors, checkpoint)

    def stop_faults(self) -> None:
        """Let its handlers fail no more."""
        for each in self._all:
            each.faults_off = True

    def missing(self, stream: str, writers: Collection[str]) -> Iterator[str]:
        """Yield what its handlers have not received, as sentences."""
        for each in self.handlers:
            facts = each.checker.missing(stream, writers)
            unreported = each.checker.unreported_losses(stream)
            if unreported:
                yield f"{self.name}'s handler {each.kind.name} was not notified that {unreported} are lost"
            if facts:
                tokens = [fact.token for fact in facts]
                yield f"{self.name}'s handler {each.kind.name} lacks {tokens} of {stream}"

    def handled(self, stream: str, writer: str, upto: Token, facts: Sequence[Fact]) -> None:
        """A transaction of its handler has committed."""
        self._data.handled(self.name, stream, writer, upto, facts)

    async def wait_for(self, fact: VersionFact, timeout_s: float) -> None:
        """Wait until the follower has applied everything up to a fact.

        :raises NotRunning: the process is down
        :raises SynreplError: it has not, or not in time
        """
        if self._service is None or not self.ready:
            raise NotRunning(name=self.name)
        writer = None if self.kind.legacy else fact.writer
        await self._service.wait_for(fact.stream, writer, fact.token, timeout_s)

    def _of_handler(self, handler: HandlerActor) -> Mapping[Key, Token]:
        return self._on_record.handler(self.name, handler.kind.name) if self.kind.named else {}


#: Actors that may write.
WritingActor = MasterActor | WriterActor | FollowerActor


def writing(
    master: MasterActor, writers: Sequence[WriterActor], followers: Sequence[FollowerActor]
) -> list[WritingActor]:
    """All actors that write: the master, the pure writers, and some followers."""
    return [master, *writers, *(follower for follower in followers if follower.kind.writes)]

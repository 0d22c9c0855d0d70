"""Processes over all their lives: started, killed by the seed, started again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Protocol

from simulator.application import Application
from simulator.application_data import ApplicationData, Told
from simulator.clock import Life, VirtualClock
from simulator.follower_checker import Checkpoint, FollowerChecker, PositionClaims
from simulator.follower_database import FollowerTransaction
from simulator.network import Network
from simulator.parts import (
    Cast,
    FollowerKind,
    FollowerPart,
    HandlerKind,
    Key,
    MasterPart,
    Place,
    WriterPart,
)
from simulator.position_checker import Movements, WatchedMovements
from simulator.transcript import Transcript
from synrepl.core.errors import SynreplError, Unavailable
from synrepl.core.tokens import Range, Token
from synrepl.streams.definition import Fact

#: Makes the place of a new process, which is on the bus or not.
Places = Callable[[Life, bool], Place]

#: Puts a checker in front of whoever is told of movements.
Watchers = Callable[[Movements], WatchedMovements]


class FollowersOnRecord(Protocol):
    """What is on record of followers."""

    def own(self, follower: str) -> Mapping[Key, Token]:
        """A follower's own positions."""

    def handler(self, follower: str, handler: str) -> Mapping[Key, Token]:
        """Those of one of its handlers."""


#: Makes the life of a new process by its name.
Lives = Callable[[str], Life]


class NotRunning(Unavailable):
    """process {name} does not run; ask again when it does"""


class HandlerFailed(Exception):
    """What a user's handler may raise."""


class Supervisor:
    """Starts processes, and starts them again some time after their death, as systemd does."""

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        transcript: Transcript,
        lives: Lives,
        places: Places,
    ) -> None:
        self._clock = clock
        self._random = random
        self._transcript = transcript
        self._lives = lives
        self._places = places

    def begin(self, actor: Actor) -> None:
        """Give an actor a new life."""
        if actor.life is not None or actor.retired:
            return
        life = actor.life = self._lives(actor.name)
        life.spawn("start", self._start(actor, life))

    def kill(self, actor: Actor, what: str = "killed", away_s: float = 3.0) -> None:
        """End an actor's life; another one begins within ``away_s``, unless it is retired."""
        if actor.life is None:
            return
        life, actor.life, actor.ready, actor.application = actor.life, None, False, None
        self._transcript.add(actor.name, "{what}", what=what)
        life.kill()
        if not actor.retired:
            self._clock.callLater(self._random.random() * away_s, self.begin, actor)

    async def _start(self, actor: Actor, life: Life) -> None:
        try:
            place = self._places(life, actor.bus)
            actor.application = place.application
            await actor.play(place, life)
        except SynreplError as error:
            self.kill(actor, f"cannot start: {error}")
        else:
            actor.ready = True
            self._transcript.add(actor.name, "is ready")

    async def stop(self, actor: Actor) -> None:
        """End an actor's life in good order."""
        life = actor.life
        try:
            await actor.stop()
        except SynreplError as error:
            self._transcript.add(actor.name, "stopped badly: {error}", error=error)
        if actor.life is life:
            self.kill(actor, "stopped")


class Actor:
    """One process.

    :param bus: it is on Redis
    :ivar life: its present life, if it has one
    :ivar application: what runs in its present life, from before it is ready
    :ivar ready: its start has succeeded
    :ivar retired: it is not started again
    """

    def __init__(self, name: str, bus: bool) -> None:
        self.name = name
        self.bus = bus
        self.life: Life | None = None
        self.application: Application | None = None
        self.ready = False
        self.retired = False

    async def play(self, place: Place, life: Life) -> None:
        """Start; returns when it is ready."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop in good order."""


class _Watching:
    """Watches what a new process announces."""

    def __init__(self, watch: Watchers) -> None:
        self._watch = watch
        self._watched: list[WatchedMovements] = []

    def __call__(self, movements: Movements) -> WatchedMovements:
        self._watched.append(self._watch(movements))
        return self._watched[-1]

    def started(self, positions: Mapping[Key, Token]) -> None:
        """It stands here, and is heard from now on."""
        for watched in self._watched:
            watched.started(positions)


class WriterActor(Actor):
    """A process that writes.

    :param watch: puts a checker in front of what it announces
    """

    def __init__(self, name: str, cast: Cast, watch: Watchers, bus: bool) -> None:
        super().__init__(name, bus)
        self._cast = cast
        self._watch = watch
        self._part: WriterPart | None = None

    @property
    def writer(self) -> WriterPart | None:
        """Its writer."""
        return self._part

    @property
    def positions(self) -> Mapping[Key, Token]:
        """Where it says that it stands; nothing while it is down."""
        return self._part.positions() if self.ready and self._part is not None else {}

    async def play(self, place: Place, life: Life) -> None:
        """Take the name."""
        watch = _Watching(self._watch)
        writer = self._cast.writer(place, self.name, watch)
        await writer.start()
        watch.started(writer.positions())
        self._part = writer

    async def stop(self) -> None:
        """Give the name back."""
        assert self._part is not None
        await self._part.stop()


class MasterActor(Actor):
    """The master.

    :param watch: puts a checker in front of its publisher
    """

    def __init__(
        self,
        name: str,
        cast: Cast,
        network: Network,
        watch: Watchers,
        bus: bool,
    ) -> None:
        super().__init__(name, bus)
        self._cast = cast
        self._network = network
        self._watch = watch
        self._part: MasterPart | None = None

    @property
    def writer(self) -> WriterPart | None:
        """Its own writer."""
        return None if self._part is None else self._part.writer

    async def play(self, place: Place, life: Life) -> None:
        """Start, then take connections."""
        watch = _Watching(self._watch)
        part = self._cast.master(place, watch)
        await part.start()
        watch.started(part.positions())
        self._part = part
        self._network.listen(life, part.listener)

    async def stop(self) -> None:
        """Tell the followers, and give the writer's name back."""
        assert self._part is not None
        self._network.close()
        await self._part.stop()

    def notify(self, stream: str) -> None:
        """A NOTIFY arrives, if somebody is there."""
        if self.ready and self._part is not None:
            self._part.wake(stream)

    @property
    def positions(self) -> Mapping[Key, Token]:
        """Where it says that everything stands; nothing while it is down."""
        return self._part.positions() if self.ready and self._part is not None else {}


class HandlerActor:
    """A handler of a follower.

    :ivar checker: keeps account of what it is given
    :ivar calm: it does not fail any more
    """

    def __init__(
        self, kind: HandlerKind, follower: FollowerActor, checker: FollowerChecker, random: Random
    ) -> None:
        self.kind = kind
        self.checker = checker
        self.calm = False
        self._follower = follower
        self._random = random

    async def handle(
        self, stream: str, writer: str, after: Token, upto: Token, facts: Sequence[Fact]
    ) -> None:
        """Its work: that takes time, and sometimes fails."""
        follower = self._follower
        if follower.kind.slow_s and follower.life is not None:
            await follower.life.sleep(self._random.random() * follower.kind.slow_s)
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
        """The same in a transaction: done when it commits."""
        assert isinstance(txn, FollowerTransaction)
        self._perhaps_fail()
        txn.effects.append(partial(self.checker.applied, stream, writer, after, upto, facts))
        txn.effects.append(partial(self._follower.handled, stream, writer, upto, facts))

    def reset(self, stream: str, writer: str, position: Token, lost: Range | None) -> None:
        """Facts are lost for good, by trimming or by a failover."""
        if lost is None:
            self.checker.reset(stream, writer, position)
        else:
            self.checker.told(stream, writer, lost)

    def _perhaps_fail(self) -> None:
        if not self.calm and self._random.random() < self._follower.kind.fails:
            raise HandlerFailed()


class FollowerActor(Actor):
    """A follower.

    :param make_checker: makes the checker of one of its handlers
    :param claims: checks what it says of itself
    :param on_record: what is on record of a follower, and of a handler of it
    :param data: what its transactional handler changes
    :param watch: puts a checker in front of what it announces as a writer
    :ivar handlers: those that it has in its present life
    """

    def __init__(
        self,
        name: str,
        cast: Cast,
        network: Network,
        kind: FollowerKind,
        make_checker: Callable[[HandlerKind], FollowerChecker],
        claims: PositionClaims,
        random: Random,
        on_record: FollowersOnRecord,
        data: ApplicationData,
        watch: Watchers,
    ) -> None:
        super().__init__(name, kind.bus)
        self.kind = kind
        self._cast = cast
        self._network = network
        self._claims = claims
        self._on_record = on_record
        self._data = data
        self._watch = watch
        self._part: FollowerPart | None = None
        self._lives = 0
        self._joined = False
        self._all = [HandlerActor(each, self, make_checker(each), random) for each in kind.handlers]
        self.handlers: list[HandlerActor] = []

    async def play(self, place: Place, life: Life) -> None:
        """Read the record, then connect."""
        self._lives += 1
        self.handlers = [each for each in self._all if self._lives > 1 or not each.kind.late]
        # Until it has started with it, its record may move back for a handler that joins.
        joining = not self._joined and any(each.kind.late for each in self.handlers)
        self._claims.restarted(
            self._on_record.own(self.name) if self.kind.named and not joining else {}
        )
        for each in self.handlers:
            each.checker.restarted(self._of_handler(each))
        watch = _Watching(self._watch)
        handlers = [(each.kind, each) for each in self.handlers]
        part = self._cast.follower(place, self.name, self.kind, handlers, watch)
        await part.start()
        if joining:
            self._joined = True
            self._claims.lowered()
        if part.writer is not None:
            watch.started(part.writer.positions())
        self._part = part
        if part.dialler is not None:
            self._network.dial(life, part.dialler)

    @property
    def writer(self) -> WriterPart | None:
        """Its writer, if it writes."""
        return None if self._part is None else self._part.writer

    @property
    def positions(self) -> Mapping[Key, Token]:
        """Where it says that it stands; nothing while it is down."""
        return self._part.positions() if self.ready and self._part is not None else {}

    def check(self) -> None:
        """Compare what it says and what is on record with what its handlers were given."""
        claims = {"position": self.positions}
        if self.kind.named:
            claims["record"] = self._on_record.own(self.name)
        for what, positions in claims.items():
            if self.ready or what != "record":
                self._claims.claimed(what, positions)
                for each in self.handlers:
                    each.checker.claimed(what, positions)
        for each in self.handlers:
            each.checker.on_record(self._of_handler(each))

    def checkpoint(self) -> Sequence[Checkpoint]:
        """What its handlers have been given by now."""
        return [each.checker.checkpoint() for each in self._all]

    def fell_back(self, floors: Mapping[str, Token], standby: Sequence[Checkpoint]) -> None:
        """A standby has taken over.

        :param floors: by stream: positions below are from before
        :param standby: what handlers had been given when it got its last
        """
        self._claims.fell_back(floors)
        for each, checkpoint in zip(self._all, standby, strict=True):
            each.checker.fell_back(floors, checkpoint)

    def calm(self) -> None:
        """Its handlers do not fail any more."""
        for each in self._all:
            each.calm = True

    def missing(self, stream: str, writers: Collection[str]) -> Iterator[str]:
        """What its handlers have not been given, as sentences."""
        for each in self.handlers:
            facts = each.checker.missing(stream, writers)
            untold = each.checker.untold(stream)
            if untold:
                yield f"{self.name}'s handler {each.kind.name} was not told that {untold} are lost"
            if facts:
                tokens = [fact.token for fact in facts]
                yield f"{self.name}'s handler {each.kind.name} lacks {tokens} of {stream}"

    def handled(self, stream: str, writer: str, upto: Token, facts: Sequence[Fact]) -> None:
        """A transaction of its handler commits."""
        self._data.handled(self.name, stream, writer, upto, facts)

    async def wait_for(self, told: Told, timeout_s: float) -> None:
        """Wait until everything up to a fact is here.

        :raises NotRunning: :raises SynreplError: it is not, or not in time
        """
        if self._part is None or not self.ready:
            raise NotRunning(name=self.name)
        writer = None if self.kind.legacy else told.writer
        await self._part.wait_for(told.stream, writer, told.token, timeout_s)

    def _of_handler(self, handler: HandlerActor) -> Mapping[Key, Token]:
        return self._on_record.handler(self.name, handler.kind.name) if self.kind.named else {}


#: Whoever may write.
WritingActor = MasterActor | WriterActor | FollowerActor


def writing(
    master: MasterActor, writers: Sequence[WriterActor], followers: Sequence[FollowerActor]
) -> list[WritingActor]:
    """All who write: the master, processes that do nothing else, and some workers."""
    return [master, *writers, *(follower for follower in followers if follower.kind.writes)]

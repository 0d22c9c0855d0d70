"""Processes over all their lives: started, killed by the seed, started again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Token
from synrepl.streams.definition import Fact
from synrepl.testing.simulator.clock import Life, VirtualClock
from synrepl.testing.simulator.follower_checker import FollowerChecker
from synrepl.testing.simulator.follower_database import FollowerTransaction
from synrepl.testing.simulator.network import Network
from synrepl.testing.simulator.parts import (
    Cast,
    FollowerKind,
    FollowerPart,
    Key,
    MasterPart,
    Place,
    WriterPart,
)
from synrepl.testing.simulator.position_checker import Movements, WatchedMovements
from synrepl.testing.simulator.transcript import Transcript

#: Makes the place of a new process.
Places = Callable[[Life], Place]

#: Makes the life of a new process by its name.
Lives = Callable[[str], Life]


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

    def kill(self, actor: Actor, what: str = "killed") -> None:
        """End an actor's life; another one begins later, unless it is retired."""
        if actor.life is None:
            return
        life, actor.life, actor.ready = actor.life, None, False
        self._transcript.add(actor.name, "{what}", what=what)
        life.kill()
        if not actor.retired:
            self._clock.callLater(self._random.random() * 3, self.begin, actor)

    async def _start(self, actor: Actor, life: Life) -> None:
        try:
            await actor.play(self._places(life), life)
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

    :ivar life: its present life, if it has one
    :ivar ready: its start has succeeded
    :ivar retired: it is not started again
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.life: Life | None = None
        self.ready = False
        self.retired = False

    async def play(self, place: Place, life: Life) -> None:
        """Start; returns when it is ready."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop in good order."""


class WriterActor(Actor):
    """A process that writes."""

    def __init__(self, name: str, cast: Cast) -> None:
        super().__init__(name)
        self._cast = cast
        self._part: WriterPart | None = None

    @property
    def writer(self) -> WriterPart | None:
        """Its writer."""
        return self._part

    async def play(self, place: Place, life: Life) -> None:
        """Take the name."""
        writer = self._cast.writer(place, self.name)
        await writer.start()
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
        watch: Callable[[Movements], WatchedMovements],
    ) -> None:
        super().__init__(name)
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
        watched: list[WatchedMovements] = []

        def watch(movements: Movements) -> WatchedMovements:
            watched.append(self._watch(movements))
            return watched[0]

        part = self._cast.master(place, watch)
        await part.start()
        watched[0].started(part.positions())
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


class FollowerActor(Actor):
    """A follower, and the receiver of its facts.

    :param on_record: what a new life finds on record under a follower's name
    """

    def __init__(
        self,
        name: str,
        cast: Cast,
        network: Network,
        kind: FollowerKind,
        checker: FollowerChecker,
        random: Random,
        on_record: Callable[[str], Mapping[Key, Token]],
    ) -> None:
        super().__init__(name)
        self.kind = kind
        self.checker = checker
        self._cast = cast
        self._network = network
        self._random = random
        self._on_record = on_record
        self._part: FollowerPart | None = None
        self.calm = False

    async def play(self, place: Place, life: Life) -> None:
        """Read the record, then connect."""
        self.checker.restarted(self._on_record(self.name) if self.kind.named else {})
        part = self._cast.follower(place, self.name, self.kind, self)
        await part.start()
        self._part = part
        self._network.dial(life, part.dialler)

    @property
    def positions(self) -> Mapping[Key, Token]:
        """Where it says that it stands; nothing while it is down."""
        return self._part.positions() if self.ready and self._part is not None else {}

    def check(self) -> None:
        """Compare what it says and what is on record with what it has applied."""
        self.checker.stands(self.positions)
        if self.kind.named:
            self.checker.on_record(self._on_record(self.name))

    async def handle(
        self, stream: str, writer: str, after: Token, upto: Token, facts: Sequence[Fact]
    ) -> None:
        """A handler's work: it takes time, and sometimes fails."""
        if self.kind.slow_s and self.life is not None:
            await self.life.sleep(self._random.random() * self.kind.slow_s)
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

    def _perhaps_fail(self) -> None:
        if not self.calm and self._random.random() < self.kind.fails:
            raise HandlerFailed()

"""The joins that run: whoever asks for the same one again waits for it, in any process, and hears how far it is.

A join goes on when nobody waits any more: it may be in the room already, as other servers see it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import uuid4

from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.services.federation.joining.errors import JoinGoesOn, TooManyJoins
from synrepl.services.federation.joining.join import JoinedRoomResult, JoinRequest, RoomJoiner
from synrepl.services.federation.joining.progress import JoinProgress
from synrepl.services.forwarding import ForwardsToWriter, WriterActions
from synrepl.services.rooms.room_intake import NoRoomWriter
from synrepl.services.rooms.room_writers import RoomWriters
from synrepl.storage.rooms.tables.sent_events import SentEvent

#: The action by which one process has another one join a room.
JOIN_ACTION = "join room of other servers"

#: Seconds that a client waits for a join, and one request between processes.
CLIENT_WAIT_S, FORWARD_WAIT_S = 45.0, 20.0

#: Joins that run at most in a process, of one user, and of which it is remembered how they ended.
MAX_RUNNING, MAX_OF_USER, MAX_ENDED = 200, 20, 500


class JoinState(NamedTuple):
    """How far a join is, or how it ended.

    :ivar run: names this run of it
    :ivar progress: as :meth:`.JoinProgress.to_json`
    :ivar joined: None while it runs
    """

    run: str
    progress: Mapping[str, Any]
    joined: JoinedRoomResult | None


class _Run:
    """A join that runs, or has ended."""

    def __init__(self, progress: JoinProgress) -> None:
        self.name = uuid4().hex
        self.progress = progress
        self.joined: JoinedRoomResult | None = None
        self.error: SynreplError | None = None
        self.waiting: set[_Waiting] = set()

    @property
    def has_ended(self) -> bool:
        return self.joined is not None or self.error is not None


class _Waiting:
    """Somebody who waits for a run."""

    def __init__(self, promise: Promise[None]) -> None:
        self.promise = promise
        self._is_open = True

    def wake(self) -> None:
        if self._is_open:
            self._is_open = False
            self.promise.callback(None)


class RunningJoins:
    """Runs joins.

    :param joiner: None in a process that persists no room
    :param instance: this process
    :ivar outcomes: number of joins that ended here: ``partial``, ``whole``, or the name of the error
    """

    def __init__(
        self,
        scheduler: Scheduler,
        joiner: RoomJoiner | None,
        writers: RoomWriters,
        forwarder: ForwardsToWriter,
        instance: str,
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._joiner = joiner
        self._writers = writers
        self._forwarder = forwarder
        self._instance = instance
        self._log = log
        self._running: dict[tuple[str, str], _Run] = {}
        self._ended: OrderedDict[str, _Run] = OrderedDict()
        self.outcomes: Counter[str] = Counter()

    def add_actions(self, actions: WriterActions) -> None:
        """Let other processes have rooms joined here."""
        actions.add(JOIN_ACTION, self._perform, waits=True)

    def status(self) -> dict[str, Any]:
        """The joins that run here, and how others ended."""
        now = self._scheduler.seconds()
        running = [
            {"room_id": room_id, "user_id": user_id, **run.progress.to_json(now)}
            for (room_id, user_id), run in list(self._running.items())
        ]
        return {"running": running, "outcomes": dict(self.outcomes)}

    async def join(self, asked: JoinRequest, patience_s: float = CLIENT_WAIT_S) -> JoinedRoomResult:
        """Join a room, or wait for the same join if it runs.

        :raises JoinGoesOn: it takes longer than the patience
        :raises SynreplError: the errors of :meth:`.RoomJoiner.join`, and of forwarding
        """
        until, run = self._scheduler.seconds() + patience_s, None
        while True:
            left = until - self._scheduler.seconds()
            state = await self.follow(asked, max(0.0, min(left, FORWARD_WAIT_S)), run)
            if state.joined is not None:
                return state.joined
            run = state.run
            if self._scheduler.seconds() >= until:
                raise JoinGoesOn(room_id=asked.room_id, phase=state.progress["phase"])

    async def follow(self, asked: JoinRequest, wait_s: float, run: str | None = None) -> JoinState:
        """Begin a join, or find the one that runs, and wait for its end for a moment.

        :param run: that was begun before; its end is told also after it has ended
        :raises TooManyJoins: :raises SynreplError: see :meth:`join`
        """
        assignment = (await self._writers.place([asked.room_id])).assignment
        writer = assignment.writer_of(asked.room_id)
        if writer == self._instance:
            return await self._follow(asked, wait_s, run)
        argument = {"asked": asked._asdict(), "wait_s": wait_s, "run": run}
        found = await self._forwarder.forward(writer, JOIN_ACTION, argument)
        return _state(found)

    # -- in the process that persists the room ----------------------------------------------

    async def _perform(self, argument: dict[str, Any]) -> dict[str, Any]:
        asked = JoinRequest(**argument["asked"])
        state = await self._follow(asked, argument["wait_s"], argument["run"])
        joined = None
        if state.joined is not None:
            sent = state.joined.sent
            joined = state.joined._asdict() | {"sent": None if sent is None else [*sent]}
        return {"run": state.run, "progress": state.progress, "joined": joined}

    async def _follow(self, asked: JoinRequest, wait_s: float, name: str | None) -> JoinState:
        run = self._ended.get(name or "") or self._running.get((asked.room_id, asked.user_id))
        if run is None:
            run = self._begin(asked)
        if not run.has_ended and wait_s > 0:
            await self._end_of(run, wait_s)
        if run.error is not None:
            raise run.error
        progress = run.progress.to_json(self._scheduler.seconds())
        return JoinState(run.name, progress, run.joined)

    def _begin(self, asked: JoinRequest) -> _Run:
        joiner = self._joiner
        if joiner is None:
            raise NoRoomWriter(writers="those of stream_writers")
        own = sum(user_id == asked.user_id for _, user_id in self._running)
        if own >= MAX_OF_USER or len(self._running) >= MAX_RUNNING:
            raise TooManyJoins(number=len(self._running), own=own)
        run = _Run(JoinProgress(self._scheduler.seconds()))
        self._running[asked.room_id, asked.user_id] = run
        self._scheduler.spawn(f"join {asked.room_id}", self._run(joiner, asked, run))
        return run

    async def _run(self, joiner: RoomJoiner, asked: JoinRequest, run: _Run) -> None:
        try:
            run.joined = await joiner.join(asked, run.progress)
            self.outcomes["partial" if run.joined.is_partial else "whole"] += 1
        except SynreplError as error:
            self.outcomes[type(error).__name__] += 1
            run.error = error
        except Exception:
            run.error = JoinGoesOn(room_id=asked.room_id, phase="after an unexpected error")
            raise  # it is logged
        finally:
            del self._running[asked.room_id, asked.user_id]
            self._ended[run.name] = run
            while len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)
            for waiting in list(run.waiting):
                waiting.wake()

    async def _end_of(self, run: _Run, wait_s: float) -> None:
        """Wait until a run ends, or for some seconds."""
        waiting = _Waiting(self._scheduler.promise())
        run.waiting.add(waiting)
        timer = self._scheduler.callLater(wait_s, waiting.wake)
        try:
            await waiting.promise
        finally:
            run.waiting.discard(waiting)
            if timer.active():
                timer.cancel()


def _state(found: Mapping[str, Any]) -> JoinState:
    return JoinState(found["run"], found["progress"], _joined(found["joined"]))


def _joined(found: Mapping[str, Any] | None) -> JoinedRoomResult | None:
    if found is None:
        return None
    sent = None if found["sent"] is None else SentEvent(*found["sent"])
    return JoinedRoomResult(found["room_id"], sent, found["is_partial"])

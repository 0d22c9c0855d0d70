"""Changes of writers: they are added, drained, removed, brought back, and duplicated."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from random import Random
from typing import Any

from simulator.actors import Supervisor, WriterActor, WritingActor
from simulator.clock import Process
from simulator.interfaces import Key, MembershipService
from simulator.plain_sql import SQL
from simulator.transcript import Transcript
from simulator.truth import Violations
from simulator.workload import CATALOGUE
from synrepl.core.errors import SynreplError, Unavailable
from synrepl.core.tokens import Token
from synrepl.streams.definition import Stream

#: Maximum number of pure writer processes.
MOST_WRITERS = 5

#: Maximum seconds for which an operator waits for a drain; and practically unlimited, at the end.
PATIENCE_S = 8.0
FINAL_PATIENCE_S = 1_000.0

#: Maximum lifetime of a second process with the same name, in seconds.
RIVAL_LIVES_S = 15.0


class Operators:
    """Changes the writers at random, and checks the results.

    :param process: the process of the operators
    :param membership: the operations
    :param unsettled: the smallest unsettled token of a writer
    :param last_taken: the last token that a writer has taken
    :param writers: the pure writer processes; new ones are added to it
    :param writing: all actors that write
    :param new_writer: makes a writer process by its name
    :param interrupt: crashes a writer, or ends its session, mostly while it writes
    """

    def __init__(
        self,
        random: Random,
        transcript: Transcript,
        violations: Violations,
        process: Process,
        membership: MembershipService,
        supervisor: Supervisor,
        unsettled: Callable[[str, str], Token | None],
        last_taken: Callable[[str, str], Token],
        writers: list[WriterActor],
        writing: Callable[[], list[WritingActor]],
        new_writer: Callable[[str], WriterActor],
        interrupt: Callable[[WritingActor], object],
    ) -> None:
        self._random = random
        self._transcript = transcript
        self._violations = violations
        self._process = process
        self._membership = membership
        self._supervisor = supervisor
        self._unsettled = unsettled
        self._last_taken = last_taken
        self._writers = writers
        self._writing = writing
        self._new_writer = new_writer
        self._interrupt = interrupt
        self._undrained: set[Key] = set()
        #: The last token of each writer that was reported as drained.
        self._drained_at: dict[Key, Token] = {}
        #: Names of writers that are being added or removed.
        self._busy: set[str] = set()
        self._rivals: list[WriterActor] = []
        self._is_patient = False
        #: Number of completed drains.
        self.drained = 0

    @property
    def rivals(self) -> list[WriterActor]:
        """The ready second processes of a name, which write if they can."""
        return [rival for rival in self._rivals if rival.ready]

    def perform(self, name: str) -> None:
        """Perform one of :data:`_CHANGES`."""
        _CHANGES[name](self)

    def stop_faults(self) -> None:
        """End all second processes, and finish all drains, also those that begin from now on."""
        self._is_patient = True
        for rival in self._rivals:
            self._retire(rival)
        for stream, writer in sorted(self._undrained):
            self._process.spawn("drain", self._drain(CATALOGUE[stream], writer, FINAL_PATIENCE_S))

    def unfinished(self) -> Iterator[str]:
        """Yield what operators still wait for, as sentences."""
        for key in list(self._drained_at):
            self._check_drained(key)
        for stream, writer in sorted(self._undrained):
            yield f"{writer} of {stream} is not drained"

    # -- operations ----------------------------------------------------------------------

    def _add_writer(self) -> None:
        if len(self._writers) < MOST_WRITERS:
            actor = self._new_writer(f"writer{len(self._writers) + 1}")
            self._writers.append(actor)
            self._alone(actor, self._bring(actor))

    def _drain_writer(self) -> None:
        actor = self._random.choice(self._writing())
        if self._random.random() < 0.5:
            self._interrupt(actor)
        for stream in self._some_streams():
            self._process.spawn("drain", self._drain(stream, actor.name, self._patience()))

    def _drain_sql(self) -> None:
        for stream in self._some_streams():
            self._process.spawn("drain", self._close_to_sql(stream))

    def _retire_writer(self) -> None:
        actor = self._random.choice(self._writers)
        self._alone(actor, self._take_away(actor))

    def _remove_writer(self) -> None:
        actor = self._random.choice(self._writers)
        if self._random.random() < 0.5:
            self._interrupt(actor)
        self._alone(actor, self._remove(actor))

    def _return_writer(self) -> None:
        actor = self._random.choice(self._writing())
        self._alone(actor, self._bring(actor))

    def _take_name_over(self) -> None:
        rival = self._new_writer(self._random.choice(self._writers).name)
        self._rivals.append(rival)
        self._log("a second process claims the name {name}", name=rival.name)
        self._supervisor.start(rival)
        self._process.callLater(self._random.random() * RIVAL_LIVES_S, self._retire, rival)

    def _alone(self, actor: WritingActor, work: Coroutine[Any, Any, None]) -> None:
        """Run a change of a writer, unless another change of it is running."""
        if actor.name in self._busy:
            work.close()
            return
        self._busy.add(actor.name)

        async def change() -> None:
            await work
            self._busy.discard(actor.name)

        self._process.spawn("change a writer", change())

    def _some_streams(self) -> list[Stream]:
        streams = list(CATALOGUE)
        return streams if self._random.random() < 0.5 else [self._random.choice(streams)]

    def _patience(self) -> float:
        return FINAL_PATIENCE_S if self._is_patient else self._random.random() * PATIENCE_S

    def _retire(self, actor: WriterActor) -> None:
        actor.retired = True
        self._supervisor.kill(actor, "is ended for good")

    async def _close_to_sql(self, stream: Stream) -> None:
        """Drain plain SQL from a stream for a while."""
        await self._drain(stream, SQL, self._patience())
        await self._process.sleep(self._patience())
        await self._add(stream, SQL)
        self._log("plain SQL may write to {stream}", stream=stream.name)

    async def _add(self, stream: Stream, writer: str) -> None:
        key = stream.name, writer
        self._check_drained(key)
        self._undrained.discard(key)
        await self._membership.add(stream, writer)
        self._undrained.discard(key)

    def _check_drained(self, key: Key) -> None:
        """Check that a writer has taken no token since it was reported as drained."""
        last = self._drained_at.pop(key, None)
        taken = self._last_taken(*key)
        if last not in (None, taken):
            self._violations.add(
                "R8", "{writer} of {stream} was drained, but took {token}",
                writer=key[1], stream=key[0], token=taken,
            )  # fmt: skip

    async def _bring(self, actor: WritingActor) -> None:
        for stream in CATALOGUE:
            await self._add(stream, actor.name)
        self._log("{name} may write", name=actor.name)
        actor.retired = False
        self._supervisor.start(actor)

    async def _take_away(self, actor: WriterActor) -> None:
        """Drain, stop and remove a writer; sometimes it crashes instead of stopping."""
        drained = [await self._drain(stream, actor.name, self._patience()) for stream in CATALOGUE]
        actor.retired = True
        if actor.ready and all(drained) and self._random.random() < 0.7:
            await self._supervisor.stop(actor)
        else:
            self._supervisor.kill(actor)
        await self._remove(actor)

    async def _remove(self, actor: WriterActor) -> None:
        """Remove a writer if the database allows it: it has to be drained or dead."""
        for stream in CATALOGUE:
            try:
                await self._membership.remove(stream, actor.name)
            except SynreplError as error:
                self._log("{name} is not removed: {error}", name=actor.name, error=error)
                continue
            self._undrained.discard((stream.name, actor.name))
            self._log("{name} of {stream} is removed", name=actor.name, stream=stream.name)
            self._retire(actor)  # it could not start any more

    async def _drain(self, stream: Stream, writer: str, patience_s: float) -> bool:
        key = stream.name, writer
        self._log("{name} of {stream} is to be drained", name=writer, stream=stream.name)
        self._undrained.add(key)
        try:
            await self._membership.drain(stream, writer, patience_s)
        except SynreplError as error:
            self._log("{error}", error=error)
            if not isinstance(error, Unavailable):  # it is no writer
                self._undrained.discard(key)
            return False
        if key not in self._undrained:  # brought back meanwhile, or another drain was reported
            return False
        self._undrained.discard(key)
        self.drained += 1
        self._drained_at[key] = self._last_taken(*key)
        self._log("{name} of {stream} is drained", name=writer, stream=stream.name)
        open_ = self._unsettled(stream.name, writer)
        if open_ is not None:
            self._violations.add(
                "R8", "{writer} of {stream} is reported as drained, but {token} is open",
                writer=writer, stream=stream.name, token=open_,
            )  # fmt: skip
        return True

    def _log(self, words: str, **facts: object) -> None:
        self._transcript.add("operator", words, **facts)


_CHANGES: Mapping[str, Callable[[Operators], None]] = {
    "add_writer": Operators._add_writer,
    "drain_writer": Operators._drain_writer,
    "drain_sql": Operators._drain_sql,
    "retire_writer": Operators._retire_writer,
    "remove_writer": Operators._remove_writer,
    "return_writer": Operators._return_writer,
    "take_name_over": Operators._take_name_over,
}

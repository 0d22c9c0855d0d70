"""The simulated database: one in-memory store, with latency and faults for each of its clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from twisted.internet.defer import Deferred

from simulator.application_data import ApplicationData
from simulator.clock import CURRENT, CurrentProcess, Process, VirtualClock
from simulator.follower_database import FollowerDatabase, FollowerRecordStore
from simulator.membership_database import MembershipDatabase
from simulator.plain_sql import SQL, PlainSqlTransaction
from simulator.position_checker import CommitChecker, RecordChecker
from simulator.process_store import ProcessStore
from simulator.scenario import SimulationScenario
from simulator.standby import Standby, lost_since, proofs
from simulator.transcript import Transcript
from simulator.trim_checker import TrimChecker
from simulator.truth import ALL, Truth, Violations
from simulator.watched_stream import WatchedStream
from synrepl.core.tokens import MAX_TOKEN, Range, Token
from synrepl.storage.database import CommitUnknown
from synrepl.storage.memory.lease import MemoryLease
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.memory.stream import MemoryStream
from synrepl.storage.store import (
    DatabaseAway,
    Observation,
    WriterRemoved,
)
from synrepl.streams.definition import Fact, Stream

#: Steps within a transaction, which the server continues when the client is dead.
_IN_TRANSACTION = frozenset({"append reserved", "transact reserved", "write entered"})

#: Steps after a commit: a failure here comes after the effect.
_AFTER_COMMIT = frozenset({"append committed", "transact committed", "write committed"})

#: Steps on the session connection: a failure ends the session.
_SESSION_STEPS = frozenset({"reserve", "reserved", "release", "close"})


@dataclass(eq=False)
class _Client:
    """A client process, as the database sees it.

    :ivar isolated_until: time until which the client cannot reach the database
    :ivar commits: whether it was killed after sending COMMIT
    """

    process: Process
    leases: list[MemoryLease] = field(default_factory=list)
    isolated_until: float = 0.0
    commits: bool = False


class SimulatedDatabase(MemoryStore):
    """Adds latency, loses replies and sessions, and passes what was committed to the checkers.

    :ivar trims: checks what is trimmed
    :ivar follower_records: the recorded positions of followers
    :ivar notified: called with the name of a stream after each commit to it
    :ivar faults_off: whether faults have stopped
    :ivar is_over: whether the run is over, and nothing waits any more
    """

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        transcript: Transcript,
        violations: Violations,
        truth: Truth,
        scenario: SimulationScenario,
        data: ApplicationData,
    ) -> None:
        super().__init__(CurrentProcess(clock), begin_changes=data.begin)
        self._clock = clock
        self._random = random
        self._transcript = transcript
        self._scenario = scenario
        self._known_tokens: dict[str, Token] = {}
        self._unused: dict[str, Token] = {}
        self._data = data
        self._commits = CommitChecker(violations, truth)
        self.trims = TrimChecker(
            violations, truth, clock.seconds, self.on_record, scenario.retention
        )
        self._records = RecordChecker(violations, self.unsettled)
        self._clients: dict[Process, _Client] = {}
        self.follower_records = FollowerRecordStore(
            self.server,
            lambda number: list(lost_since(self._all_watched(), number)),
            lambda: {name: stream.floor for name, stream in self._streams.items() if stream.floor},
        )
        self._truth = truth
        self._plain: list[PlainSqlTransaction] = []
        self._server = 1
        self.notified: Callable[[str], object] = lambda stream: None
        self.faults_off = False
        self.is_over = False

    # -- for processes ----------------------------------------------------------

    def store_of(self, process: Process) -> ProcessStore:
        """The store, for one process."""
        self._clients[process] = client = _Client(process)
        process.on_kill(lambda: self._died(client))
        return ProcessStore(process, self, self)

    def followers_of(self, process: Process) -> FollowerDatabase:
        """The database, for a follower's delivery."""
        return FollowerDatabase(self._trip, self._next_fault, self.follower_records)

    def on_record(self, follower: str) -> Mapping[tuple[str, str], Token]:
        """The recorded positions of a follower."""
        return self.follower_records.own(follower)

    def for_operators(
        self, streams: Iterable[Stream], trip: Callable[[], Awaitable[object]]
    ) -> MembershipDatabase:
        """The database, for an operator.

        :param trip: awaited before each transaction, and before its reply
        """
        watched = {stream.name: self._watched(stream) for stream in streams}
        return MembershipDatabase(watched, lambda stream: self.notified(stream), trip)

    def removed(self) -> set[tuple[str, str]]:
        """The removed writers, as (stream, writer)."""
        return {
            (name, writer)
            for name, watched in self._streams.items()
            if isinstance(watched, WatchedStream)
            for writer in watched.removed
        }

    async def begin_sql(self) -> PlainSqlTransaction:
        """Begin a transaction of plain SQL; every other one has a snapshot of its start (REPEATABLE READ)."""
        snapshot = None
        if len(self._plain) % 2:
            snapshot = {
                name: watched.snapshot(SQL)
                for name, watched in self._streams.items()
                if isinstance(watched, WatchedStream)
            }
        self._plain.append(PlainSqlTransaction(self._watched, self._data.begin(), snapshot))
        return self._plain[-1]

    def tokens_released(self, stream: Stream, tokens: Sequence[Token]) -> None:
        """A writer has released tokens that it had reserved."""
        self._watched(stream).release_tokens(tokens)

    def note_token(self, stream: str, token: Token) -> None:
        """A process knows a token, so no failover may give it out again."""
        self._known_tokens[stream] = max(token, self._known_tokens.get(stream, 0))

    def note_reservation(self, stream: Stream, tokens: Sequence[Token]) -> None:
        """A process knows that it has reserved these tokens."""
        self._watched(stream).reservation_known(tokens)
        self.note_token(stream.name, max(tokens))

    # -- faults -----------------------------------------------------------------------

    def lose_sessions(self, process: Process) -> None:
        """End the sessions of a process, which learns of it some time later."""
        leases = self._clients[process].leases
        if leases:
            self._transcript.add(process.name, "loses its session")
        for lease in leases:
            lease.crash()

    def isolate(self, process: Process, seconds: float) -> None:
        """Cut a process off from the database for some seconds."""
        self._transcript.add(process.name, "cannot reach the database for {s:.1f} s", s=seconds)
        self._clients[process].isolated_until = self._clock.seconds() + seconds

    def fail_over(self, streams: Iterable[Stream], by: int) -> None:
        """Fail over without losing commits, but with sequences behind.

        They are behind the table, and forget tokens of open transactions. They do not fall behind
        tokens that a live process knows: Postgres logs a sequence ahead of the values it gives out,
        and a commit waits for that.
        """
        self._transcript.add("database", "fails over, sequences fall back by {by}", by=by)
        self._server += 1
        for plain in self._plain:
            plain.abort()
        for client in list(self._clients.values()):
            if client.process.alive:
                self.lose_sessions(client.process)
        for stream in streams:
            watched = self._watched(stream)
            known = min(watched.last, self._known_tokens.get(stream.name, 0))
            watched.rewind_sequence(max(watched.last - by, known))

    def replicate(self) -> Standby:
        """A standby with the current data, which receives nothing from now on."""
        return Standby(self._all_watched(), self.follower_records)

    def lose_commits(self, standby: Standby, ahead: int) -> Mapping[str, Token]:
        """Promote a standby, losing what was committed since it stopped receiving.

        :returns: by stream, the first token that was never given out
        """
        self._transcript.add("database", "fails over to a standby that lacks commits")
        self.fail_over((), 0)
        streams = self._all_watched()
        for name, watched in streams.items():
            self._unused[name] = max(watched.last + 1, self._unused.get(name, 0))
        standby.promote(streams, self.follower_records, ahead)
        for name, watched in streams.items():
            lost = self._truth.lose(name, watched.tokens)
            self._commits.lose(lost)
            if lost:
                tokens = [fact.token for fact in lost]
                self._transcript.add(
                    "database", "{stream} lacks {tokens}", stream=name, tokens=tokens
                )
        self._known_tokens.clear()
        self._records.failed_over()
        self._keys.keep({name: watched.tokens for name, watched in streams.items()})
        return dict(self._unused)

    def followers_record(self, stream: str) -> Iterator[tuple[str, Token]]:
        """The positions of a stream that followers have recorded."""
        yield from proofs(self.follower_records, stream)

    def _all_watched(self) -> dict[str, WatchedStream]:
        return {
            name: watched
            for name, watched in self._streams.items()
            if isinstance(watched, WatchedStream)
        }

    def _died(self, client: _Client) -> None:
        client.commits = self._random.random() < 0.3
        slow = (
            self._random.random() < 0.1
        )  # its machine is gone, so only a timeout ends its connections
        delay = self._random.random() * (6.0 if slow else 0.2)
        for lease in client.leases:
            self._clock.callLater(delay, lease.crash if client.commits else lease.kill)

    # -- for checkers -----------------------------------------------------------------

    def unsettled(self, stream: str, writer: str) -> Token | None:
        """The smallest unsettled token of a writer, or of all writers."""
        watched = self._streams.get(stream)
        return watched.unsettled(writer) if isinstance(watched, WatchedStream) else None

    def may_be_lost(self, stream: str, writer: str, token: Token) -> bool:
        """Whether a follower that continues from a token is informed of a failover's loss."""
        watched = self._streams.get(stream)
        return watched is not None and watched.lost(Range(token, MAX_TOKEN), writer) is not None

    def last_taken(self, stream: str, writer: str) -> Token:
        """The last token that a writer has taken; 0 if none."""
        watched = self._streams.get(stream)
        return watched.last_taken.get(writer, 0) if isinstance(watched, WatchedStream) else 0

    def check(self) -> None:
        """Check the recorded positions, and that every change was announced."""
        self._data.check()
        found: dict[tuple[str, str], Token] = {}
        for name, memory in self._streams.items():
            found[name, ALL] = memory.recorded
            for writer, state in memory.writers.items():
                found[name, writer] = state.position
        self._records.check(found)

    def can_reach(self, process: Process) -> bool:
        """Whether a process can reach the database."""
        return self._clients[process].isolated_until <= self._clock.seconds()

    def dead(self) -> list[tuple[str, str]]:
        """The dead writers that can be fenced, as (stream, writer)."""
        return [
            (stream, name)
            for stream, memory in self._streams.items()
            for name, writer in memory.writers.items()
            if writer.held and writer.session is None and not writer.transactions
        ]

    # -- latency and failures ---------------------------------------------------------------------

    async def step(self, what: str) -> None:
        """Called between any two steps of an operation: wait, and perhaps fail."""
        if self.is_over:
            return
        client = self._clients.get(CURRENT.get())
        if client is None:
            return
        if what in _IN_TRANSACTION:
            server = self._server
            await self._server_delay()
            if server != self._server and client.process.alive:
                raise DatabaseAway(where="simulation", reason="the server is gone")
            if not client.process.alive and not (client.commits and server == self._server):
                for lease in client.leases:
                    lease.kill()
                await Deferred()  # the server has rolled it back
        elif not client.process.alive:
            await Deferred()  # the client is dead, so nobody learns the outcome
        elif self._random.random() < 0.5:  # the others take no time, for fewer simulated calls
            await client.process.sleep(self._delay())
        self._fail(client, what)

    async def _trip(self, what: str) -> None:
        await self.step(what)

    async def answer(self) -> None:
        """Deliver a reply: takes time, and may fail."""
        await self.step("answer")

    def _fail(self, client: _Client, what: str) -> None:
        if self.faults_off or not client.process.alive:
            return
        unreachable = self._clock.seconds() < client.isolated_until
        lost = (
            what in _AFTER_COMMIT | _IN_TRANSACTION
            and self._random.random() < self._scenario.commit_unknown
        )
        if (unreachable and what in _AFTER_COMMIT) or lost:
            raise CommitUnknown(where="simulation", name=what, xid=0, reason="the answer is lost")
        if unreachable:
            if what in _SESSION_STEPS:
                self.lose_sessions(client.process)
            raise DatabaseAway(where="simulation", reason="nothing gets through")

    def _next_fault(self, name: str) -> str:
        if self.faults_off:
            return ""
        dice = self._random.random() / max(self._scenario.commit_unknown, 1e-9)
        return "unknown" if dice < 1 else "lost" if dice < 2 else "again" if dice < 3 else ""

    def session_loss_delay_s(self) -> float:
        """Seconds until a process learns of the loss of its session."""
        return self._random.random() ** 3 * 3

    def _server_delay(self) -> Deferred[None]:
        waiting: Deferred[None] = Deferred()
        slow = self._random.random() < 0.05 and not self.faults_off  # a commit can take its time
        delay = self._random.random() if slow else self._delay()
        self._clock.callLater(delay, waiting.callback, None)
        return waiting

    def _delay(self) -> float:
        dice = self._random.random()
        return (
            dice**3 * self._scenario.database_s * (20 if dice > 0.98 and not self.faults_off else 1)
        )

    # -- MemoryStore -----------------------------------------------------------------------

    async def observe(self, streams: Sequence[Stream]) -> Mapping[str, Observation]:
        """Observe streams: sequences first, then locks."""
        await self.step("observe")
        last = {stream.name: self._of(stream).last for stream in streams}
        for name, token in last.items():
            self.note_token(name, token)
        await self.step("observe locks")
        self.server.require_confirmed()
        return {
            stream.name: replace(self._of(stream).observation(), last=last[stream.name])
            for stream in streams
        }

    async def renew_lease(
        self, follower: str, streams: Sequence[str] | None, lease_s: float
    ) -> None:
        """Keep for a named follower what it has not acknowledged."""
        await super().renew_lease(follower, streams, lease_s)
        self.trims.renewed(follower, lease_s)

    def _claim(self, writer: str, memories: Sequence[MemoryStream]) -> MemoryLease:
        for memory in memories:
            if writer in self._watched(memory.stream).removed:
                raise WriterRemoved(writer=writer, stream=memory.stream.name)
        lease = super()._claim(writer, memories)
        for memory in memories:
            watched = self._watched(memory.stream)
            watched.void_tokens(writer)
            watched.died.discard(writer)
            watched.take(0, 0)  # a new writer repairs its sequences
        self._clients[CURRENT.get()].leases.append(lease)
        return lease

    def _watched(self, stream: Stream) -> WatchedStream:
        found = self._of(stream)
        assert isinstance(found, WatchedStream)
        return found

    def _of(self, stream: Stream) -> MemoryStream:
        found = self._streams.get(stream.name)
        if found is None:
            found = WatchedStream(
                stream, self._commits, self._committed, self.trims.gone, self.server
            )
            self._streams[stream.name] = found
        return found

    def _committed(self, stream: Stream, facts: Sequence[Fact]) -> None:
        for fact in facts:
            self.trims.committed(stream.name, fact)
            self._data.committed(stream.name, fact)
        self.notified(stream.name)

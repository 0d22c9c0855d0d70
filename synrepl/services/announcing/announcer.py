"""Watches the streams in a database, and announces facts as they are settled.

NOTIFY wakes the announcer, and a slow poll backs it up: a lost NOTIFY costs latency, never a
fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.tokens import Range, Token
from synrepl.core.wakeable_sleep import WakeableSleep
from synrepl.positions.ledger import Ledger
from synrepl.services.announcing.stream_state import PositionListener, StreamState
from synrepl.services.sizes import DEFAULT_SIZES, Sizes
from synrepl.storage.store import FactsLost, FactStore, NotConfirmed, Observation, Trimmed
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row


class Announcer:
    """Keeps the states of streams up to date with the store.

    :param listener: is notified of all advances
    :param poll_s: seconds between two polls when nothing wakes it
    :param trimmed: called with (stream, writer, token) if another process trimmed facts up to
        the token before they were read here
    :param failed_over: called with the number of the server's incarnation when another server
        has taken over
    :ivar last_error: why the last poll failed; None if it succeeded
    :ivar failovers: number of failovers since the process started
    """

    def __init__(
        self,
        scheduler: Scheduler,
        store: FactStore,
        streams: Iterable[Stream],
        listener: PositionListener,
        log: Logger,
        poll_s: float = 1.0,
        trimmed: Callable[[str, str, Token], object] = lambda stream, writer, upto: None,
        failed_over: Callable[[int], object] = lambda incarnation: None,
        sizes: Sizes = DEFAULT_SIZES,
    ) -> None:
        self._scheduler = scheduler
        self._store = store
        self._log = log
        self._poll_s = poll_s
        self._trimmed = trimmed
        self._failed_over = failed_over
        self._sizes = sizes
        self.states: dict[str, StreamState] = {
            stream.name: StreamState(stream, listener, sizes.held_rows) for stream in streams
        }
        self._streams = [state.stream for state in self.states.values()]
        self._dirty: set[str] = set()
        self._is_refreshing = False
        self._is_watching = False
        self._pause = WakeableSleep(scheduler)
        self._recorded: dict[str, object] = {}
        self.last_error: SynreplError | None = None
        self.failovers = 0

    @property
    def incarnation(self) -> int:
        """Number of the database server's incarnation; 0 before the start."""
        return max((state.incarnation for state in self.states.values()), default=0)

    async def start(self) -> None:
        """Read all positions from the database, then keep watching.

        Either all positions are taken over or none, so it may be called again after an error.
        """
        seen = await self._observe(self._streams)
        reached: dict[str, Mapping[str, Token]] = {}
        for stream in self._streams:
            span = Range(seen[stream.name].recorded, seen[stream.name].last)
            reached[stream.name] = {} if span.empty else await self._store.reached(stream, span)
        for name, state in self.states.items():
            state.begin(seen[name], reached[name])
        self._is_watching = True
        self._scheduler.spawn("watch streams", self._watch())

    async def stop(self) -> None:
        """Stop watching, and record the positions a last time."""
        self._is_watching = False
        await self._record()

    def wake(self, stream: str) -> None:
        """Poll a stream soon: something may have happened to it (a NOTIFY, a hole)."""
        state = self.states.get(stream)
        if state is not None and self._is_watching:
            self._dirty.add(stream)
            self._pause.wake()
            if not self._is_refreshing:
                self._is_refreshing = True
                self._scheduler.spawn("look at streams", self._refresh_while_dirty())

    def wake_all(self) -> None:
        """Poll every stream soon, for instance after the NOTIFY connection was lost."""
        for stream in self._streams:
            self.wake(stream.name)

    # -- commit_listener.CommitListener, for the own writer -------------------------------

    def lease_acquired(self, stream: Stream, writer: str, ledger: Ledger) -> None:
        """Announce from now on what the writer of this ledger settles."""
        self.states[stream.name].attach_ledger(writer, ledger)

    def failed_over(self, stream: Stream, writer: str, ledger: Ledger, seen: Observation) -> None:
        """The own writer holds its lease on a server that has taken over."""
        state = self.states[stream.name]
        self._switch_incarnation(state, seen)
        state.attach_ledger(writer, ledger)
        state.announce_failover(writer, ledger.position)

    def settled(self, stream: Stream, tokens: Sequence[Token], facts: Sequence[Fact]) -> None:
        """The own writer settled tokens; a hole below them makes the stream be polled."""
        state = self.states[stream.name]
        state.own_settled(tokens, facts)
        if state.has_hole:
            self.wake(stream.name)

    def recovered(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """The own writer found facts of its own when it acquired its lease again."""
        self.states[stream.name].own_recovered(facts)
        self.wake(stream.name)

    def outcome_unknown(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Nothing is announced yet; if the facts were committed, they are found later."""

    # -- polling -------------------------------------------------------------------------

    async def _watch(self) -> None:
        while self._is_watching:
            await self._scheduler.sleep(self._poll_s)
            self.wake_all()
            await self._record()

    async def _refresh_while_dirty(self) -> None:
        pause = self._sizes.recheck_s
        stuck_at: dict[str, Token] = {}
        try:
            while self._dirty and self._is_watching:
                dirty, self._dirty = self._dirty, set()
                await self._refresh([self.states[name] for name in sorted(dirty)])
                self.last_error = None
                again = {name for name in dirty if self.states[name].has_hole}
                positions = {name: self.states[name].linear for name in again}
                # Behind a long transaction nothing new can be seen for a while.
                longer = min(2 * pause, self._sizes.slow_recheck_s)
                pause = longer if positions == stuck_at else self._sizes.recheck_s
                stuck_at = positions
                if (again or self._dirty) and self._is_watching:
                    await self._scheduler.sleep(self._sizes.coalesce_s)
                    if not self._dirty:
                        await self._pause.sleep(pause)
                    self._dirty |= again
        except SynreplError as error:
            # The next poll sees what was missed now.
            self.last_error = error
            self._log.warn("cannot look at the streams: {error}", error=error)
        finally:
            self._is_refreshing = False

    async def _refresh(self, states: Sequence[StreamState]) -> None:
        seen = await self._observe([state.stream for state in states])
        for state in states:
            self._switch_incarnation(state, seen[state.stream.name])
        for state in states:
            await self._apply(state, seen[state.stream.name])

    async def _observe(self, streams: Sequence[Stream]) -> Mapping[str, Observation]:
        """Observe streams; a server that has taken over is confirmed first."""
        try:
            return await self._store.observe(streams)
        except NotConfirmed as error:
            announced = {name: dict(state.positions) for name, state in self.states.items()}
            number = await self._store.confirm(announced)
            self._log.warn(
                "{error}; confirmed now, as incarnation {number}: facts that were announced may be"
                " lost, 'synrepl doctor' lists them",
                error=error,
                number=number,
            )
            return await self._store.observe(streams)

    def _switch_incarnation(self, state: StreamState, observation: Observation) -> None:
        """Switch to a server that has taken over, unless that was done before."""
        if state.incarnation and observation.incarnation > state.incarnation:
            if observation.incarnation > self.incarnation:
                self.failovers += 1
            self._failed_over(observation.incarnation)
            state.fail_over(observation)
            self._log.warn(
                "the database failed over: {stream} continues above {floor}",
                stream=state.stream.name,
                floor=observation.floor,
            )

    async def _apply(self, state: StreamState, observation: Observation) -> None:
        if observation.incarnation < state.incarnation:
            return
        stream = state.stream
        bounds = state.bounds(observation)
        await self._fence_dead_writers(stream, observation)
        ahead = {w: bound for w, bound in bounds.items() if bound > state.scanned(w)}
        for writer in ahead:
            if state.scanned(writer) < observation.trimmed:
                # Followers that need these facts have fetched them elsewhere.
                self._trimmed(stream.name, writer, observation.trimmed)
                state.found(writer, observation.trimmed, ())
        ahead = {w: bound for w, bound in ahead.items() if bound > state.scanned(w)}
        if ahead and not await self._read_at_once(state, ahead):
            span = Range(min(map(state.scanned, ahead)), max(ahead.values()))
            reached = await self._store.reached(stream, span)
            for writer, bound in ahead.items():
                if reached.get(writer, 0) > state.scanned(writer):
                    await self._read(state, writer, bound)
                elif observation.incarnation == state.incarnation:
                    state.found(writer, bound, ())
        if (
            observation.incarnation == state.incarnation
        ):  # otherwise all of this predates a failover
            state.settled_upto(bounds, observation.last)

    async def _read_at_once(self, state: StreamState, ahead: Mapping[str, Token]) -> bool:
        """Read the facts of all writers in one page; returns False if they need more than that."""
        incarnation = state.incarnation
        span = Range(min(map(state.scanned, ahead)), max(ahead.values()))
        if span.upto - span.after > self._sizes.page_rows:
            return False
        try:
            page = await self._store.page(state.stream, span, None, self._sizes.page_rows)
        except (Trimmed, FactsLost):
            return False
        if page.is_limited:
            return False
        if state.incarnation == incarnation:
            by_writer: dict[str, list[Fact]] = {writer: [] for writer in ahead}
            for fact in page.facts:
                writer = fact.writer
                if writer in ahead and fact.token in Range(state.scanned(writer), ahead[writer]):
                    by_writer[writer].append(fact)
            for writer, facts in by_writer.items():
                state.found(writer, ahead[writer], facts)
        return True

    async def _read(self, state: StreamState, writer: str, bound: Token) -> None:
        incarnation = state.incarnation
        while state.scanned(writer) < bound:
            span = Range(state.scanned(writer), bound)
            page = await self._store.page(state.stream, span, writer, self._sizes.page_rows)
            if state.incarnation != incarnation:
                return
            state.found(writer, page.upto, page.facts)

    async def _fence_dead_writers(self, stream: Stream, observation: Observation) -> None:
        for writer, seen in observation.writers.items():
            if seen.is_held and not seen.is_alive and await self._store.fence(stream, writer):
                self._log.warn(
                    "writer {writer} of {stream} is dead: fenced off, its reservations are released",
                    writer=writer,
                    stream=stream.name,
                )
                self.wake(stream.name)

    async def _record(self) -> None:
        """Record positions, so that the next start has little to search."""
        for stream in self._streams:
            state = self.states[stream.name]
            now: tuple[Token, Mapping[str, Token]] = (state.linear, state.positions_past_idle())
            if self._recorded.get(stream.name) == now:
                continue
            try:
                await self._store.record_positions(stream, *now)
            except SynreplError as error:
                self._log.warn("cannot record positions: {error}", error=error)
                return
            self._recorded[stream.name] = now
            state.skip_idle(now[1])

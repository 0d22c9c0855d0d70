"""Watches the streams of a database and announces what settles in them.

NOTIFY wakes the announcer and a slow poll checks: a lost NOTIFY costs
latency, never a fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.tokens import Range, Token
from synrepl.positions.ledger import Ledger
from synrepl.services.announcing.stream_state import PositionListener, StreamState
from synrepl.services.sizes import DEFAULT_SIZES, Sizes
from synrepl.storage.store import FactStore, NotConfirmed, Observation
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row


class Announcer:
    """Keeps the states of streams in step with the store.

    :param poll_s: seconds between looks when nothing wakes it
    :param lost: told of facts that another process trimmed before they were seen
        here: stream, writer, and the token up to which they are gone
    :param failed_over: told the number of the server's incarnation when another server
        has taken over
    """

    def __init__(
        self,
        scheduler: Scheduler,
        store: FactStore,
        streams: Iterable[Stream],
        movements: PositionListener,
        log: Logger,
        poll_s: float = 1.0,
        lost: Callable[[str, str, Token], object] = lambda stream, writer, upto: None,
        failed_over: Callable[[int], object] = lambda incarnation: None,
        sizes: Sizes = DEFAULT_SIZES,
    ) -> None:
        self._scheduler = scheduler
        self._store = store
        self._log = log
        self._poll_s = poll_s
        self._lost = lost
        self._failed_over = failed_over
        self._sizes = sizes
        self.states: dict[str, StreamState] = {
            stream.name: StreamState(stream, movements, sizes.held_rows) for stream in streams
        }
        self._streams = [state.stream for state in self.states.values()]
        self._dirty: set[str] = set()
        self._is_refreshing = False
        self._is_watching = False
        self._recorded: dict[str, object] = {}
        self.last_error: SynreplError | None = None
        #: How often another server has taken over while this process ran.
        self.failovers = 0

    @property
    def incarnation(self) -> int:
        """Of the database's server; 0 before the start."""
        return max((state.incarnation for state in self.states.values()), default=0)

    async def start(self) -> None:
        """Take all positions from the database, then keep watching.

        Either all are taken or none, so that it may be called again after an error.
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
        """Stop watching; where the streams stand goes on record a last time."""
        self._is_watching = False
        await self._record()

    def wake(self, stream: str) -> None:
        """Something may have happened to a stream (a NOTIFY, a hole): look soon."""
        state = self.states.get(stream)
        if state is not None and self._is_watching:
            self._dirty.add(stream)
            if not self._is_refreshing:
                self._is_refreshing = True
                self._scheduler.spawn("look at streams", self._refresh_while_dirty())

    def wake_all(self) -> None:
        """Look at every stream soon, as after the NOTIFY connection was lost."""
        for stream in self._streams:
            self.wake(stream.name)

    # -- the own writer reports (commit_listener.CommitListener) -------------------------------

    def lease_acquired(self, stream: Stream, writer: str, ledger: Ledger) -> None:
        """Announce what this ledger's writer settles from now on."""
        self.states[stream.name].attach_ledger(writer, ledger)

    def failed_over(self, stream: Stream, writer: str, ledger: Ledger, seen: Observation) -> None:
        """The own writer has its name on a server that has taken over."""
        state = self.states[stream.name]
        self._switch_incarnation(state, seen)
        state.attach_ledger(writer, ledger)
        state.announce_failover(writer, ledger.position)

    def settled(self, stream: Stream, tokens: Sequence[Token], facts: Sequence[Fact]) -> None:
        """The own writer settled tokens; a hole below them must be looked into."""
        state = self.states[stream.name]
        state.own_settled(tokens, facts)
        if state.has_hole:
            self.wake(stream.name)

    def recovered(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """The own writer found facts of its own when it took its name back."""
        self.states[stream.name].own_recovered(facts)
        self.wake(stream.name)

    def outcome_unknown(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Nothing can be announced of facts that were perhaps committed; they are found if they were."""

    # -- looking -------------------------------------------------------------------------

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
                standing = {name: self.states[name].linear for name in again}
                # Behind a long transaction there is nothing new to see for a while.
                longer = min(2 * pause, self._sizes.slow_recheck_s)
                pause = longer if standing == stuck_at else self._sizes.recheck_s
                stuck_at = standing
                if (again or self._dirty) and self._is_watching:
                    await self._scheduler.sleep(pause)
                    self._dirty |= again
        except SynreplError as error:
            # The poll comes again; what was not seen now will be seen then.
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
        """Look at streams; a server that has taken over is confirmed first."""
        try:
            return await self._store.observe(streams)
        except NotConfirmed as error:
            announced = {name: dict(state.positions) for name, state in self.states.items()}
            number = await self._store.confirm(announced)
            self._log.warn(
                "{error}; confirmed now, as incarnation {number}: facts that were announced may be"
                " lost, 'synrepl doctor' tells which",
                error=error,
                number=number,
            )
            return await self._store.observe(streams)

    def _switch_incarnation(self, state: StreamState, observation: Observation) -> None:
        """Go over to a server that has taken over, if that is news."""
        if state.incarnation and observation.incarnation > state.incarnation:
            if observation.incarnation > self.incarnation:
                self.failovers += 1
            self._failed_over(observation.incarnation)
            state.fail_over(observation)
            self._log.warn(
                "the database failed over: {stream} goes on above {floor}",
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
                # Followers that need them asked for them elsewhere.
                self._lost(stream.name, writer, observation.trimmed)
                state.found(writer, observation.trimmed, ())
        ahead = {w: bound for w, bound in ahead.items() if bound > state.scanned(w)}
        if ahead:
            span = Range(min(map(state.scanned, ahead)), max(ahead.values()))
            reached = await self._store.reached(stream, span)
            for writer, bound in ahead.items():
                if reached.get(writer, 0) > state.scanned(writer):
                    await self._read(state, writer, bound)
                elif observation.incarnation == state.incarnation:
                    state.found(writer, bound, ())
        if observation.incarnation == state.incarnation:  # else all this was before
            state.settled_upto(bounds, observation.last)

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
        """Put positions on record, so that the next start need not search far."""
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

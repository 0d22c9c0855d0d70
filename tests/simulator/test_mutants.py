"""The simulator can fail: each of these defects, made on purpose, is caught within a few seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heappop
from typing import Any

from simulator.scenario import SimulationScenario
from synrepl.core.tokens import Token
from synrepl.positions.cursor import Cursor, CursorDecision
from synrepl.positions.ledger import Ledger
from synrepl.positions.settlement import SettlementTracker
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.announcing.lines import LineEncoder
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.announcing.stream_state import StreamState
from synrepl.services.following import position_record
from synrepl.services.following.catch_up import CatchUp, LanePosition
from synrepl.services.following.consumer import Consumer, PositionTracker
from synrepl.services.following.handler_calls import HandlerCalls
from synrepl.services.following.lane import Lane
from synrepl.services.following.progress import Progress
from synrepl.services.handlers import Batch
from synrepl.services.sources import Key, StorePositions
from synrepl.services.writing.writer_lease import LeaseKeeper
from synrepl.storage.database import CommitUnknown
from synrepl.storage.followers import handler_positions
from synrepl.storage.followers.handler_positions import HandlerPosition, Place
from synrepl.storage.memory.lease import MemoryKeys, MemoryLease
from synrepl.storage.memory.store import MemoryStore
from synrepl.storage.memory.stream import MemoryStream
from synrepl.storage.store import Observation, RecordedPositions
from synrepl.streams.definition import Fact, Stream
from synrepl.wire.session import ProtocolSession
from tests.simulator.mutants import MutantTestCase


class ReplicationDefects(MutantTestCase):
    """One defect each."""

    def test_facts_are_published_before_they_are_settled(self) -> None:
        def advance(ledger: Ledger) -> None:
            while ledger._settled_heap:
                ledger._position = max(ledger._position, heappop(ledger._settled_heap))

        self.assert_caught("R1", (Ledger, "_advance", advance))

    def test_reservations_of_other_writers_are_ignored(self) -> None:
        def observe(settling: SettlementTracker, last: Token, holders: object) -> Token:
            settling._bound = max(settling._bound, last)
            return settling._bound

        self.assert_caught("R1", (SettlementTracker, "observe", observe))

    def test_the_linear_position_ignores_a_writer(self) -> None:
        bounds = StreamState.bounds

        def forgetful(state: StreamState, observation: Observation) -> dict[str, Token]:
            return {w: t for w, t in bounds(state, observation).items() if w != "writer1"}

        self.assert_caught("R1 R3", (StreamState, "bounds", forgetful))

    def test_locks_are_read_before_the_sequence(self) -> None:
        def observation(stream: MemoryStream) -> Observation:
            states = {name: writer.state for name, writer in stream.writers.items()}
            early = {name: self.before.get((stream, name), state) for name, state in states.items()}
            self.before.update({(stream, name): state for name, state in states.items()})
            return Observation(last=stream.last, recorded=stream.recorded, writers=early)

        self.before: dict[object, Any] = {}
        self.assert_caught("R1 R3", (MemoryStream, "observation", observation))

    def test_gaps_are_not_detected(self) -> None:
        def on_position(cursor: Cursor, prev: Token | None, new: Token) -> CursorDecision:
            cursor._connected, cursor._replaying = True, False
            cursor._move(new)
            return CursorDecision.ADVANCED

        self.assert_caught("R3", (Cursor, "on_position", on_position))

    def test_the_position_advances_before_the_handler_has_finished(self) -> None:
        deliver_ = Lane._deliver

        async def soon(lane: Lane, *arguments: Any) -> None:
            lane._context.scheduler.spawn("deliver", deliver_(lane, *arguments))

        self.assert_caught("R3", (Lane, "_deliver", soon))

    def test_a_failed_handler_is_not_retried(self) -> None:
        attempt = HandlerCalls.attempt

        async def once(
            calls: HandlerCalls,
            consumer: Consumer,
            tracker: PositionTracker,
            batch: Batch,
            *more: Any,
        ) -> bool:
            await attempt(calls, consumer, tracker, batch, *more)
            tracker.reach(batch.upto)
            return True

        self.assert_caught("R3", (HandlerCalls, "attempt", once))

    def test_idempotency_keys_are_forgotten(self) -> None:
        def recall(keys: MemoryKeys, stream: str, key: str, digest: bytes) -> None: ...

        self.assert_caught("ONCE", (MemoryKeys, "recall", recall))

    def test_a_repeated_request_is_answered_with_the_wrong_writer(self) -> None:
        append = MemoryLease.append

        async def itself(lease: MemoryLease, *arguments: Any) -> Any:
            return [replace(w, writer=lease.writer) for w in await append(lease, *arguments)]

        self.assert_caught("ONCE", (MemoryLease, "append", itself))

    def test_an_append_of_unknown_outcome_is_retried(self) -> None:
        append = MemoryLease.append

        async def again(lease: MemoryLease, *arguments: Any) -> Any:
            try:
                return await append(lease, *arguments)
            except CommitUnknown:
                return await append(lease, *arguments)

        self.assert_caught("ONCE R3 R4", (MemoryLease, "append", again))

    def test_dead_writers_are_not_fenced(self) -> None:
        def fence(stream: MemoryStream, name: str) -> bool:
            writer = stream.writers[name]
            writer.held = False
            return True

        self.assert_caught("R1 R8", (MemoryStream, "fence", fence))

    def test_dead_writers_are_not_detected(self) -> None:
        async def nobody(announcer: Announcer, stream: Stream, seen: Observation) -> None: ...

        self.assert_caught("R8", (Announcer, "_fence_dead_writers", nobody))

    def test_a_writer_is_fenced_while_a_transaction_runs(self) -> None:
        def fence(stream: MemoryStream, name: str) -> bool:
            writer = stream.writers[name]
            if not writer.held or writer.session:
                return False
            writer.epoch += 1
            writer.held = False
            writer.holders.clear()
            return True

        self.assert_caught("R1 R8", (MemoryStream, "fence", fence))

    def test_there_is_no_poll_behind_notify(self) -> None:
        async def watch(announcer: Announcer) -> None:
            while True:
                await announcer._scheduler.sleep(1)
                await announcer._record()

        self.assert_caught("LIVENESS R8", (Announcer, "_watch", watch))

    def test_a_writer_forgets_commits_of_unknown_outcome(self) -> None:
        recover = LeaseKeeper._recover

        async def forgetful(
            writer: LeaseKeeper, stream: Stream, seen: Observation, gone: bool
        ) -> Any:
            ledger, _ = await recover(writer, stream, seen, gone)
            return ledger, []

        self.assert_caught("R3", (LeaseKeeper, "_recover", forgetful))

    def test_a_full_queue_drops_lines(self) -> None:
        offer = ProtocolSession._offer

        def lossy(session: ProtocolSession, data: bytes, lines: int, now: float) -> bool:
            if session.queued_lines + lines > session.limits.queued_lines:
                session._heartbeat.sent(now)
                return True
            return offer(session, data, lines, now)

        # What is dropped has been "written" by the time the checker could see it: the
        # follower misses it.
        self.assert_caught("R3 R2 LIVENESS", (ProtocolSession, "_offer", lossy))

    def test_a_row_too_long_for_a_line_is_announced_as_no_row(self) -> None:
        def step_over(
            encoder: LineEncoder, stream: Stream, writer: str, facts: Sequence[Fact], _: object
        ) -> list[bytes]:
            at = facts[0].token - 1
            return [encoder._position(stream, writer, at, facts[-1].token)]

        self.assert_caught("R2 R3", (LineEncoder, "_step_over", step_over))

    def test_a_legacy_catch_up_splits_facts(self) -> None:
        self.assert_caught("R3", (Cursor, "is_replaying", property(lambda cursor: False)))

    def test_a_transaction_is_applied_regardless_of_the_recorded_position(self) -> None:
        def blind(txn: Any, follower: str, place: Place, batch: Batch, known: Token) -> Batch:
            handler_positions.put(txn, follower, place, batch.upto)
            return batch

        self.assert_caught("R3", (position_record, "_still_to_do", blind))

    def test_the_recorded_position_goes_back(self) -> None:
        async def back(store: Any, stream: Stream, linear: Token, at: Mapping[str, Token]) -> None:
            store._of(stream).recorded = linear if linear % 2 else linear // 2

        self.assert_caught("R7 R3", (MemoryStore, "record_positions", back))


class ReconnectDefects(MutantTestCase):
    """Where followers connect again and again while lines gather for them."""

    def may_show(self, scenario: SimulationScenario) -> bool:
        modern = sum(not kind.legacy for kind in scenario.followers.values())
        return scenario.redis is None and modern >= 3 and scenario.faults.get("cut_link", 0) >= 10

    def test_positions_are_announced_before_buffered_rows(self) -> None:
        def subscribe(publisher: Publisher, peer: Any, audience: Any, streams: Any) -> None:
            publisher._buffer(audience).peers[peer] = streams

        self.assert_caught("R2 R3", (Publisher, "subscribe", subscribe))


class HandlerDefects(MutantTestCase):
    """Of handlers that have positions of their own."""

    def test_the_transactional_commit_records_the_position_of_all_handlers(self) -> None:
        still_to_do = position_record._still_to_do

        def of_all(txn: Any, follower: str, place: Place, batch: Batch, known: Token) -> Any:
            for handler, stream, writer in handler_positions.positions(txn, follower):
                if (stream, writer) == place[1:] and handler != place[0]:
                    row = (handler, stream, writer), HandlerPosition(batch.upto, None)
                    handler_positions.record(txn, follower, [row])
            return still_to_do(txn, follower, place, batch, known)

        self.assert_caught("R3", (position_record, "_still_to_do", of_all))

    def test_the_recorded_position_is_that_of_the_furthest_handler(self) -> None:
        def furthest(progress: Progress, key: Key, *, on_record: bool = False) -> Token | None:
            lane = progress.lanes.get(key)
            return None if lane is None else lane.position

        self.assert_caught("R3 R4", (Progress, "position", furthest))

    def test_a_handler_that_is_behind_does_not_catch_up(self) -> None:
        async def join(feed: CatchUp, *_: object) -> None:
            feed._tracker.feed = None
            feed._tracker.reach(feed._lane.position or 0)

        self.assert_caught("R3", (CatchUp, "run", join))

    def test_the_linear_view_passes_unsettled_tokens(self) -> None:
        async def recorded(positions: StorePositions, stream: Stream) -> RecordedPositions:
            seen = (await positions._store.observe([stream]))[stream.name]
            writers = {name: state.position for name, state in seen.writers.items()}
            return RecordedPositions(seen.last, writers)

        self.assert_caught("R3", (StorePositions, "recorded", recorded))


class CatchUpDefects(MutantTestCase):
    """Of handlers that leave a lane and come back."""

    def may_show(self, scenario: SimulationScenario) -> bool:
        """Those in which some fail while others take their time."""
        return any(
            len(kind.handlers) > 1 and kind.fails and kind.slow_s
            for kind in scenario.followers.values()
        )

    def test_a_handler_that_has_caught_up_joins_within_a_batch(self) -> None:
        self.assert_caught("R3", (LanePosition, "is_busy", Idle()))


class Idle:
    """An attribute that is never true."""

    def __get__(self, owner: object, cls: object) -> bool:
        return False

    def __set__(self, owner: object, value: bool) -> None: ...

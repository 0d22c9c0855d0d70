"""Waiting for positions: on a master, on followers, and the waiters themselves."""

from __future__ import annotations

from typing import Any
from unittest import TestCase

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.errors import InputError
from synrepl.core.names import BadName
from synrepl.core.tokens import BadToken, Token
from synrepl.services.announcing.lines import Audience
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.handlers import Batch, Handler
from synrepl.services.position_waiters import (
    NoLongerWaiting,
    PositionWaiters,
    TooManyWaiters,
)
from synrepl.services.sources import Key
from synrepl.services.waiting.applied_positions import (
    FollowerPositions,
    MasterPositions,
    NameAWriter,
    NotFollowed,
)
from synrepl.services.waiting.wait_for import BadWait, WaitFor, WaitTimedOut
from synrepl.streams.catalogue import UnknownStream
from synrepl.streams.definition import Fact, Generation, Stream
from synrepl.wire.commands import Command, Position, Rdata
from synrepl.wire.dialects import LEGACY, MODERN
from tests.services.world import FakeUpstream, MasterWorld, NullLog, done, manual_clock, started

A: Key = ("jobs", "a")
B: Key = ("jobs", "b")


class Wait:
    """One wait and its result.

    :ivar result: positions, or an error; nothing while it waits
    """

    def __init__(self, coroutine: Any) -> None:
        self.result: list[Any] = []
        self._deferred: Deferred[Any] = Deferred.fromCoroutine(coroutine)
        self._deferred.addCallbacks(self.result.append, self._failed)

    def cancel(self) -> None:
        self._deferred.cancel()

    def _failed(self, failure: Failure) -> None:
        self.result.append(failure.value)


class WaitingForPositions(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = manual_clock()
        self.waiters = PositionWaiters(TwistedScheduler(self.clock), most=3)

    def tearDown(self) -> None:
        self.assertEqual((len(self.waiters), self.waiters.keys), (0, set()))
        self.clock.advance(0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def wait(self, token: Token, *keys: Key, timeout_s: float = 10) -> Wait:
        return Wait(self.waiters.wait(keys or (A,), token, timeout_s))

    def test_wakes_in_the_next_turn_in_order(self) -> None:
        woken: list[int] = []
        waits = [self.wait(token) for token in (7, 5, 9)]
        for n, wait in enumerate(waits):
            wait._deferred.addCallback(lambda _, n=n: woken.append(n))
        self.waiters.moved(A, 4)
        self.waiters.moved(B, 9)
        self.waiters.moved(A, 7)
        self.assertEqual(woken, [])  # not within the call that moves the position
        self.clock.advance(0)
        self.assertEqual((woken, waits[0].result, waits[2].result), ([1, 0], [7], []))
        self.waiters.moved(A, 9)
        self.clock.advance(0)
        self.assertEqual(woken, [1, 0, 2])

    def test_wakes_at_the_first_of_several_positions(self) -> None:
        one, both = self.wait(5, A), self.wait(5, A, B)
        self.waiters.moved(B, 6)
        self.waiters.moved(B, 7)
        self.clock.advance(0)
        self.assertEqual((one.result, both.result), ([], [6]))
        self.waiters.moved(A, 5)
        self.clock.advance(0)
        self.assertEqual(one.result, [5])

    def test_returns_none_after_the_timeout(self) -> None:
        wait = self.wait(5, A, B, timeout_s=2.5)
        self.clock.advance(2.4)
        self.assertEqual(wait.result, [])
        self.clock.advance(0.1)
        self.assertEqual(wait.result, [None])

    def test_a_cancelled_waiter_is_not_woken(self) -> None:
        wait, other = self.wait(5), self.wait(5)
        self.waiters.moved(A, 5)
        wait.cancel()
        self.clock.advance(0)
        self.assertIsInstance(wait.result[0], CancelledError)
        self.assertEqual(other.result, [5])

    def test_refuses_waiters_beyond_the_limit(self) -> None:
        waits = [self.wait(5) for _ in range(3)]
        (refused,) = self.wait(5).result
        self.assertIsInstance(refused, TooManyWaiters)
        waits[1].cancel()
        waits.append(self.wait(5))
        self.assertEqual(waits[-1].result, [])
        for wait in waits:
            wait.cancel()

    def test_stopping_fails_all_waiters(self) -> None:
        wait, woken = self.wait(5), self.wait(3)
        self.waiters.moved(A, 3)
        self.waiters.stop()
        for each in (wait, woken, self.wait(1)):
            self.assertIsInstance(each.result[0], NoLongerWaiting)


class WaitersMachine(RuleBasedStateMachine):
    """Waiters are woken exactly when their token is reached."""

    KEYS = (A, B, ("jobs", ""))
    keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique=True)

    @initialize()
    def start(self) -> None:
        self.clock = manual_clock()
        self.waiters = PositionWaiters(TwistedScheduler(self.clock), most=6)
        self.open: list[tuple[list[Key], int, float, Wait]] = []
        self.turned = True

    @rule(keys=keys, token=st.integers(1, 9), timeout_s=st.integers(1, 4))
    def wait(self, keys: list[Key], token: int, timeout_s: int) -> None:
        wait = Wait(self.waiters.wait(keys, token, timeout_s))
        if len(self.open) < 6:
            self.open.append((keys, token, self.clock.seconds() + timeout_s, wait))
        else:
            assert isinstance(wait.result[0], TooManyWaiters)

    @rule(key=st.sampled_from(KEYS), position=st.integers(0, 9))
    def moved(self, key: Key, position: int) -> None:
        self.waiters.moved(key, position)
        self.clock.advance(0)
        for entry in list(self.open):
            keys, token, _, wait = entry
            if key in keys and token <= position:
                assert wait.result == [position]
                self.open.remove(entry)

    @rule(seconds=st.integers(1, 3))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)
        for entry in list(self.open):
            if entry[2] <= self.clock.seconds():
                assert entry[3].result == [None]
                self.open.remove(entry)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.open:
            entry = data.draw(st.sampled_from(self.open))
            entry[3].cancel()
            self.open.remove(entry)

    @invariant()
    def the_others_wait(self) -> None:
        assert all(wait.result == [] for *_, wait in self.open)
        assert len(self.waiters) == len(self.open)
        assert self.waiters.keys == {key for keys, *_ in self.open for key in keys}
        assert len(self.clock.getDelayedCalls()) == len(self.open)


class WaitingAgainstAModel(TestCase):
    def test_behaves_like_the_model(self) -> None:
        run_state_machine_as_test(WaitersMachine, settings=settings(max_examples=60, deadline=None))


class WaitingOnAMaster(SynchronousTestCase):
    def setUp(self) -> None:
        self.world: MasterWorld = started()
        self.addCleanup(self.world.stop)
        world = self.world
        own = MasterPositions(world.announcer, world.writer)
        self.waiting = WaitFor(world.catalogue, own, world.waiters)

    def wait(self, token: Token, writer: str | None = None, timeout_s: float = 5) -> Wait:
        return Wait(self.waiting.wait_for("jobs", writer, token, timeout_s))

    def append(self) -> None:
        done(self.world.intake.append("jobs", b"[[1]]"))
        self.world.clock.advance(0)

    def timed_out(self, wait: Wait) -> str:
        self.world.clock.advance(5)
        (error,) = wait.result
        self.assertIsInstance(error, WaitTimedOut)
        return str(error)

    def test_returns_at_once_when_the_position_is_reached(self) -> None:
        self.append()
        for writer in ("master", None):
            self.assertEqual(self.wait(1, writer).result, [1])
        self.assertEqual(self.wait(0, "nobody").result, [1])

    def test_wakes_when_this_process_writes(self) -> None:
        waits = [self.wait(2, writer) for writer in ("master", None)]
        self.append()
        self.assertEqual([wait.result for wait in waits], [[], []])
        self.append()
        self.assertEqual([wait.result for wait in waits], [[2], [2]])

    def test_returns_a_position_reached_at_the_timeout(self) -> None:
        wait = self.wait(1, timeout_s=0)
        self.append()
        self.assertEqual(wait.result, [1])

    def test_wakes_when_another_writer_writes(self) -> None:
        world = self.world
        lease = world.reserved_by_other("jobs", 1)
        waits = [self.wait(1, writer) for writer in ("other", None)]
        stream = world.catalogue["jobs"]
        row = next(iter(stream.kinds.values()))
        done(lease.write(stream, [Fact(1, "other", (row(1),))]))
        done(lease.release(stream, [1]))
        world.clock.pump([1.0, 0.1, 0.1])
        self.assertEqual([wait.result for wait in waits], [[1], [1]])

    def test_wakes_when_a_token_is_rolled_back(self) -> None:
        world = self.world
        lease = world.reserved_by_other("jobs", 1)
        wait = self.wait(1, "other")
        done(lease.release(world.catalogue["jobs"], [1]))
        world.clock.pump([1.0, 0.1, 0.1])
        self.assertEqual(wait.result, [1])

    def test_wakes_after_the_lines_are_published(self) -> None:
        message: list[str] = []
        publisher, world = self.world.publisher, self.world

        class Peer:
            def write_live(self, chunk: Any) -> None:
                message.append("line")

            def left_behind(self, stream: Stream, after: Token) -> None:
                """Do nothing."""

        audience = Audience(MODERN, Generation.CURRENT, 16_384)
        publisher.subscribe(Peer(), audience, None)
        for writer in ("master", None):
            wait = self.wait(1, writer)
            wait._deferred.addCallback(lambda _: message.append("woken"))
        self.append()
        self.assertEqual(message, ["line", "woken", "woken"])
        self.assertEqual(len(world.waiters), 0)

    def test_says_that_the_token_was_not_taken(self) -> None:
        self.append()
        self.assertEqual(
            self.timed_out(self.wait(9, "master")),
            "waited 5 s for token 9 of 'jobs' by 'master', which is at 1: "
            "nobody has taken that token yet, the last one taken is 1",
        )

    def test_names_other_writers_that_hold_the_position(self) -> None:
        lease = self.world.reserved_by_other("jobs", 1)
        done(lease.reserve(self.world.catalogue["jobs"], 1, 0))
        another = done(self.world.store.open_writer("another", [self.world.catalogue["jobs"]]))
        done(another.reserve(self.world.catalogue["jobs"], 1, 0))
        self.append()
        self.world.clock.advance(1)
        self.assertRegex(
            self.timed_out(self.wait(2, "other")),
            r"by 'other', which is at 0: held by writer 'other' \(.+\), and 1 more$",
        )
        self.assertRegex(
            self.timed_out(self.wait(3)),
            r"by '\(all\)', which is at 0: held by writer 'another' \(.+\), and 2 more$",
        )
        self.assertEqual(self.wait(4, "master").result, [4])

    def test_names_a_dead_writer_that_holds_the_position(self) -> None:
        self.world.reserved_by_other("jobs", 1).kill()
        self.append()
        wait = self.wait(2, timeout_s=0.001)
        self.world.clock.advance(0.001)
        self.assertRegex(
            str(wait.result[0]),
            r"held by writer 'other' \(it is dead, and about to be fenced off\)$",
        )
        wait = self.wait(2)
        self.world.clock.pump([0.1, 0.1])
        self.assertEqual(wait.result, [2])

    def test_names_its_own_writer_that_holds_the_position(self) -> None:
        stream = self.world.catalogue["jobs"]
        done(self.world.writer.reserve(stream, 1))
        message = self.timed_out(self.wait(1, timeout_s=0))  # nobody has looked at the database
        self.assertIn("held by this process's own writer 'master', which has not settled", message)
        self.assertRegex(self.timed_out(self.wait(1)), r"held by writer 'master' \(")

    def test_says_that_the_database_is_unavailable(self) -> None:
        self.world.reserved_by_other("jobs", 1)
        self.world.clock.advance(1)
        self.world.store.away = True
        self.assertIn("the streams cannot be looked at:", self.timed_out(self.wait(1)))

    def test_refuses_bad_arguments(self) -> None:
        for arguments, error in (
            (("job", None, 1, 1.0), UnknownStream),
            (("jobs", "a b", 1, 1.0), BadName),
            (("jobs", None, -1, 1.0), BadToken),
            (("jobs", None, 2**63, 1.0), BadToken),
            (("jobs", None, 1, -1.0), BadWait),
            (("jobs", None, 1, 300.1), BadWait),
            (("jobs", None, 1, float("nan")), BadWait),
        ):
            with self.subTest(arguments):
                (found,) = Wait(self.waiting.wait_for(*arguments)).result
                self.assertIsInstance(found, error)
                self.assertIsInstance(found, InputError)
        self.assertEqual(len(self.world.waiters), 0)


class SwitchableHandler(Handler):
    """Records its tokens; fails while the test wants it to.

    :ivar done: the tokens it has dealt with
    """

    def __init__(self) -> None:
        self.fails = False
        self.done: list[Token] = []

    async def on_rows(self, batch: Batch) -> None:
        if self.fails:
            raise RuntimeError("not now")
        self.done += [fact.token for fact in batch.facts]


class WaitingFollowerCase(SynchronousTestCase):
    dialect = MODERN
    streams: frozenset[str] | None = None

    def setUp(self) -> None:
        world = self.world = started()
        self.addCleanup(world.stop)
        self.waiters = PositionWaiters(world.scheduler)
        self.handler = SwitchableHandler()
        self.connected = True
        delivery = Delivery(
            world.scheduler, [Subscription(self.handler)], NullLog(), waiters=self.waiters
        )
        self.delivery = delivery
        self.follower = Follower(
            world.scheduler, world.catalogue, world.store, delivery, NullLog(), self.streams
        )
        self.follower.connected(FakeUpstream(self.dialect))
        own = FollowerPositions(
            self.follower,
            delivery,
            lambda: self.connected,
            self.streams,
            linear=not self.dialect.per_writer,
        )
        self.waiting = WaitFor(world.catalogue, own, self.waiters)

    def wait(self, token: Token, writer: str | None = "w", stream: str = "jobs") -> Wait:
        return Wait(self.waiting.wait_for(stream, writer, token, 5))

    def receive(self, *commands: Command) -> None:
        self.follower.received(commands)
        self.world.clock.advance(0)

    def timed_out(self, wait: Wait) -> str:
        self.world.clock.advance(5)
        (error,) = wait.result
        self.assertIsInstance(error, WaitTimedOut)
        return str(error)


class WaitingOnAFollower(WaitingFollowerCase):
    """On a follower of the modern dialect."""

    def test_wakes_once_handlers_have_processed_the_rows(self) -> None:
        self.receive(Position("jobs", "w", 0, 0))
        self.handler.fails = True
        waits = [self.wait(1), self.wait(1, None), self.wait(2), self.wait(1, "x")]
        seen: list[list[Token]] = []
        waits[0]._deferred.addCallback(lambda _: seen.append(list(self.handler.done)))
        self.receive(Rdata("jobs", "w", 1, b"[1]"))
        self.assertEqual([wait.result for wait in waits], [[], [], [], []])
        self.handler.fails = False
        self.world.clock.advance(0.5)
        self.world.clock.advance(0)
        self.assertEqual([wait.result for wait in waits], [[1], [1], [], []])
        self.assertEqual(seen, [[1]])
        self.assertEqual(self.wait(1).result, [1])

    def test_wakes_at_a_position(self) -> None:
        wait = self.wait(7)
        self.receive(Position("jobs", "w", 0, 0), Position("jobs", "w", 0, 8))
        self.assertEqual(wait.result, [8])

    def test_wakes_when_a_gap_is_filled(self) -> None:
        done(self.world.intake.append("jobs", b"[[1],[2],[3]]"))
        wait = self.wait(3, "master")
        self.receive(Position("jobs", "master", 2, 3))
        self.assertEqual((wait.result, self.handler.done), ([3], [1, 2, 3]))

    def test_wakes_when_the_handler_has_already_moved(self) -> None:
        """As a transactional handler does."""
        self.receive(Position("jobs", "w", 0, 0))
        wait = self.wait(1)
        self.delivery.consumers[0].trackers["jobs", "w"].reach(1)
        self.receive(Rdata("jobs", "w", 1, b"[1]"))
        self.assertEqual(wait.result, [1])

    def test_a_reset_wakes_no_waiter(self) -> None:
        self.receive(Position("typing", "w", 5, 5))
        wait = self.wait(7, stream="typing")
        self.receive(Position("typing", "w", 0, 3))
        self.assertEqual((wait.result, self.wait(3, stream="typing").result), ([], [3]))
        self.receive(Position("typing", "w", 3, 7))
        self.assertEqual(wait.result, [7])

    def test_says_how_far_the_master_has_announced(self) -> None:
        self.receive(Position("jobs", "w", 3, 3))
        self.assertEqual(
            self.timed_out(self.wait(4)),
            "waited 5 s for token 4 of 'jobs' by 'w', which is at 3: "
            "the master has announced it only up to 3",
        )
        self.connected = False
        message = self.timed_out(self.wait(4))
        self.assertIn("only up to 3; there is no connection to the master now", message)

    def test_describes_the_failing_handler(self) -> None:
        self.receive(Position("jobs", "w", 0, 0))
        self.handler.fails = True
        self.receive(Rdata("jobs", "w", 1, b"[1]"))
        message = self.timed_out(self.wait(1))
        self.assertIn(
            f"up to 1, and handler {__name__}:SwitchableHandler fails at jobs (0, 1] of w: RuntimeError: not now"
            " (attempt 2, failing for 5 s, next attempt in 1 s)",
            message,
        )

    def test_says_that_facts_are_being_fetched(self) -> None:
        self.receive(Position("jobs", "master", 0, 0))
        self.world.store.away = True
        self.receive(Position("jobs", "master", 1, 2))
        message = self.timed_out(self.wait(2, "master"))
        self.assertIn("up to 2, and it is being fetched or handled here", message)

    def test_asks_for_a_writer_unless_there_is_one(self) -> None:
        (error,) = self.wait(1, None).result
        self.assertIsInstance(error, NameAWriter)
        self.assertIn("has heard of none yet: name", str(error))
        self.receive(Position("jobs", "w", 1, 1), Position("jobs", "v", 0, 0))
        (error,) = self.wait(1, None).result
        self.assertIn("has heard of v, w: name", str(error))


class WaitingOnAFollowerOfSomeStreams(WaitingFollowerCase):
    streams = frozenset({"jobs"})

    def test_refuses_streams_that_are_not_followed(self) -> None:
        (error,) = self.wait(1, stream="typing").result
        self.assertIsInstance(error, NotFollowed)
        self.assertIsInstance(error, InputError)
        self.receive(Position("jobs", "w", 1, 1))
        self.assertEqual(self.wait(1).result, [1])


class WaitingOnALinearFollower(WaitingFollowerCase):
    dialect = LEGACY

    def test_wakes_at_the_linear_position_for_any_writer(self) -> None:
        waits = [self.wait(2, writer) for writer in ("w", None)]
        self.receive(Position("jobs", None, None, 1))
        self.receive(Rdata("jobs", None, 2, b"[1]"))
        self.assertEqual([wait.result for wait in waits], [[2], [2]])

    def test_calls_the_linear_position_all(self) -> None:
        self.receive(Position("jobs", None, None, 1))
        self.assertIn("by '(all)', which is at 1", self.timed_out(self.wait(2)))

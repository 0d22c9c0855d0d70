"""Tokens that cannot have been given out do not move a follower."""

from __future__ import annotations

from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.core.tokens import MAX_TOKEN, Token
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.following.possible_tokens import (
    LOOK_EVERY_S,
    WARN_FOR_S,
    PossibleTokens,
    none_refused,
    not_ahead,
)
from synrepl.services.handlers import Batch, Handler
from synrepl.services.sizes import DEFAULT_SIZES
from synrepl.storage.store import Draft
from synrepl.streams.definition import Stream
from synrepl.wire.commands import Command, Position, Rdata
from synrepl.wire.dialects import CURRENT, LEGACY, MODERN, Dialect
from tests.services.world import FakeUpstream, MasterWorld, RecordingLog, done, started

FAR = 1_000_000


class RecordingHandler(Handler):
    """Records the tokens of its facts."""

    streams = frozenset({"jobs", "typing"})

    def __init__(self) -> None:
        self.tokens: list[Token] = []

    async def on_rows(self, batch: Batch) -> None:
        self.tokens += [fact.token for fact in batch.facts]


class CountingSource:
    """A source that counts lookups, and can lag behind."""

    def __init__(self, world: MasterWorld, is_late: bool = False) -> None:
        self.world = world
        self.is_late = is_late
        self.looks = 0
        self.behind = 0

    async def given_out(self, stream: Stream) -> Token | None:
        self.looks += 1
        return max(0, await self.world.store.given_out(stream) - self.behind)


class PausableUpstream(FakeUpstream):
    """A connection that records whether it is paused."""

    paused = 0

    def pause(self) -> None:
        self.paused += 1

    def resume(self) -> None:
        self.paused -= 1


class RefusingTokens(TestCase):
    """A follower of one writer, on a connection on which the test sends lines."""

    def setUp(self) -> None:
        self.world = started()
        self.addCleanup(self.world.stop)
        self.addCleanup(self.world.scheduler.stop)
        self.log = RecordingLog()
        self.handler = RecordingHandler()
        self.source = CountingSource(self.world)

    def follow(self, dialect: Dialect = CURRENT, near: int = 0) -> None:
        world = self.world
        self.delivery = Delivery(world.scheduler, [Subscription(self.handler)], self.log)
        self.tokens = PossibleTokens(world.scheduler, self.source, self.log, near)
        self.follower = Follower(
            world.scheduler,
            world.catalogue,
            world.store,
            self.delivery,
            self.log,
            tokens=self.tokens,
        )
        self.upstream = PausableUpstream(dialect)
        self.follower.connected(self.upstream)

    def append(self, count: int = 1) -> list[Token]:
        done(self.world.intake.append("jobs", b"[" + b",".join([b"[1]"] * count) + b"]"))
        return list(range(1, self.world.last("jobs") + 1))

    def receive(self, *commands: Command) -> None:
        self.follower.received(commands)
        self.world.clock.pump([LOOK_EVERY_S] * (len(commands) + 1))

    def row(self, token: Token) -> Rdata:
        return Rdata("jobs", "master", token, b"[1]")

    def position(self) -> Token | None:
        return self.follower.positions.get(("jobs", "master"))

    def test_refuses_a_position_beyond_the_sequence_and_loses_nothing(self) -> None:
        self.append(3)
        self.follow()
        self.receive(Position("jobs", "master", 3, 3))
        self.receive(Position("jobs", "master", 3, FAR))
        self.assertEqual(self.position(), 3)
        every = self.append(2)
        self.receive(self.row(4), self.row(5))
        self.assertEqual((self.position(), self.handler.tokens), (5, every))
        self.assertEqual(self.tokens.refused, {"jobs": 1})
        self.assertEqual(self.follower.announced["jobs", "master"], 5)
        ((level, line),) = self.log.lines
        self.assertEqual(level, "warn")
        self.assertIn("token 1000000 of writer 'master' in stream 'jobs' cannot have", line)
        self.assertIn("the last one was 3: ignored, the position stays 3", line)

    def test_refuses_a_row_beyond_the_sequence(self) -> None:
        self.append(3)
        self.follow()
        self.receive(Position("jobs", "master", 3, 3), self.row(FAR))
        self.assertEqual((self.position(), self.handler.tokens), (3, [1, 2, 3]))
        self.assertEqual(self.follower.waiting_rows, 0)
        self.assertEqual(self.follower.announced["jobs", "master"], 3)
        every = self.append(2)
        self.receive(self.row(4), self.row(FAR + 1), self.row(5))
        self.assertEqual((self.position(), self.handler.tokens), (5, every))
        self.assertEqual(self.tokens.refused, {"jobs": 2})
        self.assertEqual(len(self.log.lines), 1)  # logged once

    def test_checks_the_first_position_of_a_new_follower(self) -> None:
        self.append(3)
        self.follow()
        self.receive(Position("jobs", "master", FAR, FAR))
        self.assertNotEqual(self.position(), FAR)
        self.receive(Position("jobs", "master", 3, 3))
        self.assertEqual((self.position(), self.handler.tokens), (3, [1, 2, 3]))

    def test_refuses_a_legacy_position_beyond_the_sequence(self) -> None:
        self.append(3)
        self.follow(LEGACY)
        for token in (1, 2, 3):
            self.receive(Rdata("jobs", None, token, b"[1]"))
        self.receive(Position("jobs", None, None, FAR))
        self.receive(Position("jobs", None, None, 3))
        self.assertEqual(self.follower.positions["jobs", ""], 3)
        self.assertEqual(self.tokens.refused, {"jobs": 1})

    def test_fetches_wrongly_refused_rows_with_the_next_ones(self) -> None:
        self.append(3)
        self.follow()
        self.receive(Position("jobs", "master", 3, 3))
        self.append(2)
        self.source.behind = 2
        self.receive(self.row(4))
        self.source.behind = 0
        self.receive(self.row(5))
        self.assertEqual(self.handler.tokens, [1, 2, 3, 4, 5])
        self.append(2)
        self.source.behind = 2
        self.receive(self.row(6))
        self.source.behind = 0
        self.receive(Position("jobs", "master", 5, 7))
        self.assertEqual(self.handler.tokens, [1, 2, 3, 4, 5, 6, 7])

    def test_waits_for_a_source_that_learns_of_tokens_late(self) -> None:
        self.source.is_late = True
        self.append(3)
        self.follow()
        self.receive(Position("jobs", "master", 3, 3))
        self.append()
        self.source.behind = 1
        self.receive(self.row(4))
        self.source.behind = 0
        self.world.clock.advance(2)
        self.assertEqual(self.handler.tokens, [1, 2, 3, 4])
        self.assertEqual(self.tokens.refused, {})

    def test_follows_a_sequence_that_was_moved_far_up(self) -> None:
        """As after a failover that lost commits."""
        self.append(3)
        self.follow()
        self.receive(Position("jobs", "master", 3, 3))
        jobs = self.world.catalogue["jobs"]
        self.world.store.set_sequence(jobs, 10**9)
        self.receive(Position("jobs", "master", 10**9, 10**9))
        self.assertEqual(self.position(), 10**9)
        self.assertEqual(self.tokens.refused, {})

    def test_accepts_tokens_of_a_table_that_is_ahead_of_its_sequence(self) -> None:
        self.append(5)
        self.world.store.set_sequence(self.world.catalogue["jobs"], 2)
        self.follow()
        self.receive(Position("jobs", "master", 5, 5))
        self.assertEqual(self.position(), 5)

    def test_does_not_look_up_tokens_known_to_be_possible(self) -> None:
        self.append(500)
        self.follow()
        self.receive(Position("jobs", "master", 0, 0), *map(self.row, range(1, 501)))
        self.assertEqual(self.handler.tokens, list(range(1, 501)))
        self.assertEqual(self.source.looks, 1)

    def test_looks_up_once_for_tokens_that_arrive_together(self) -> None:
        self.append(1)
        self.follow()
        self.receive(Position("jobs", "master", 1, 1))
        looks = self.source.looks
        self.append(300)
        self.receive(*map(self.row, range(2, 302)))
        self.assertEqual((self.position(), self.source.looks), (301, looks + 1))

    def test_limits_the_rate_of_lookups(self) -> None:
        self.append(1)
        self.follow()
        self.receive(Position("jobs", "master", 1, 1))
        looks = self.source.looks
        for token in range(2, 102):
            self.append(1)
            self.follower.received([self.row(token)])
            self.world.clock.advance(LOOK_EVERY_S / 10)
        self.world.clock.advance(LOOK_EVERY_S)
        self.assertEqual(self.handler.tokens, list(range(1, 102)))
        self.assertLessEqual(self.source.looks - looks, 12)

    def test_one_lookup_serves_many_rows_where_only_this_server_can_send(self) -> None:
        self.append(1)
        self.follow(near=50)
        self.receive(Position("jobs", "master", 1, 1))
        looks = self.source.looks
        for token in range(2, 203):
            self.append(1)
            self.receive(self.row(token))
        self.assertEqual(self.handler.tokens, list(range(1, 203)))
        self.assertEqual(self.source.looks - looks, 3)
        self.receive(self.row(FAR), Position("jobs", "master", 202, 203))
        self.assertEqual((self.position(), self.tokens.refused), (202, {"jobs": 2}))

    def test_reports_a_position_that_an_unchecked_row_has_moved_too_far(self) -> None:
        self.append(1)
        self.follow(near=50)
        self.receive(Position("jobs", "master", 1, 1), self.row(40))
        streams = {stream.name: stream for stream in self.world.catalogue}
        positions = [(None, key, at) for key, at in self.follower.positions.items()]
        done(self.tokens.check(streams, positions))
        self.assertIn(
            "the position in jobs of master is 40, and only 1", str(not_ahead(self.tokens)())
        )

    def test_refuses_a_flood_of_forged_positions_with_few_lookups(self) -> None:
        self.append(1)
        self.follow()
        self.receive(Position("jobs", "master", 1, 1))
        looks = self.source.looks
        self.append(1)
        forged = [Position("jobs", "master", 1, FAR + n) for n in range(5_000)]
        self.follower.received([*forged, self.row(2)])
        self.world.clock.pump([LOOK_EVERY_S] * 5)
        self.assertEqual((self.position(), self.tokens.refused), (2, {"jobs": 5_000}))
        self.assertLessEqual(self.source.looks - looks, 3)
        self.assertEqual(self.follower.waiting_rows, 0)

    def test_stops_reading_while_positions_cannot_be_looked_up(self) -> None:
        self.append(1)
        self.follow()
        self.world.store.away = True
        forged = [
            Position("jobs", "master", 1, FAR + n) for n in range(DEFAULT_SIZES.high_water_rows + 1)
        ]
        self.follower.received(forged)
        self.assertEqual(self.upstream.paused, 1)
        self.world.store.away = False
        self.world.clock.pump([1.0] * 2)
        self.assertEqual((self.upstream.paused, self.follower.waiting_rows), (0, 0))

    def test_processes_nothing_while_tokens_cannot_be_looked_up(self) -> None:
        self.append(1)
        self.follow()
        self.receive(Position("jobs", "master", 1, 1))
        self.append(1)
        self.world.store.away = True
        self.receive(self.row(2))
        self.assertEqual(self.position(), 1)
        self.assertIn("cannot look up which tokens were given out", self.log.lines[-1][1])
        self.world.store.away = False
        self.world.clock.advance(1)
        self.assertEqual(self.position(), 2)

    def test_drops_items_of_a_connection_that_is_lost_during_a_lookup(self) -> None:
        self.append(1)
        self.follow()
        self.receive(Position("jobs", "master", 1, 1))
        self.append(1)
        self.world.store.away = True
        self.receive(self.row(2))
        self.follower.disconnected()
        self.world.store.away = False
        self.world.clock.advance(1)
        self.assertEqual((self.position(), self.follower.waiting_rows), (1, 0))
        self.follower.connected(FakeUpstream(CURRENT))
        self.receive(Position("jobs", "master", 2, 2))
        self.assertEqual(self.handler.tokens, [1, 2])

    def test_accepts_every_token_of_streams_in_memory(self) -> None:
        """The next POSITION of their writer is a new start."""
        self.follow()
        self.receive(Position("typing", "master", FAR, FAR))
        self.assertEqual(self.follower.positions["typing", "master"], FAR)
        self.assertEqual(self.source.looks, 0)
        self.receive(Position("typing", "master", 0, 0))
        self.assertEqual(self.follower.positions["typing", "master"], 0)

    def test_warns_of_refusals_for_a_while(self) -> None:
        self.append(3)
        self.follow(MODERN)
        check = none_refused(self.tokens, self.world.clock.seconds)
        self.assertIsNone(check())
        self.receive(Position("jobs", "master", FAR, FAR))
        self.assertIn("the last one 1000000 in jobs, where 3 has been", str(check()))
        status = self.tokens.to_json()
        self.assertEqual(status["refused"], {"jobs": 1})
        self.assertEqual(status["last_refused"]["given_out"], 3)
        self.world.clock.advance(WARN_FOR_S + 1)
        self.assertIsNone(check())

    def test_a_follower_that_is_ahead_of_the_database_is_not_ready(self) -> None:
        self.append(3)
        self.follow()
        streams = {stream.name: stream for stream in self.world.catalogue}
        key = ("jobs", "master")
        done(self.tokens.check(streams, [(None, key, 3), ("mail", key, 3)]))
        self.assertIsNone(not_ahead(self.tokens)())
        done(self.tokens.check(streams, [(None, key, 3), ("mail", key, FAR)]))
        message = str(not_ahead(self.tokens)())
        self.assertIn(
            "the position in jobs of master (handler mail) is 1000000, and only 3", message
        )
        self.assertIn("synrepl followers reset", message)
        self.assertEqual(len(self.log.lines), 1)

    @given(
        st.lists(
            st.one_of(
                st.just("append"),
                st.integers(-3, 3).map(lambda n: ("row", n)),
                st.tuples(st.just("position"), st.integers(-5, 3), st.integers(-3, 3)),
                st.sampled_from([("row", FAR), ("position", 0, FAR), ("position", FAR, FAR)]),
            ),
            max_size=25,
        )
    )
    @settings(max_examples=150, deadline=None)
    def test_loses_and_repeats_no_fact_whatever_is_forged(self, steps: list) -> None:  # type: ignore[type-arg]
        """Real rows come in order, mixed with tokens that were never given out."""
        self.setUp()
        self.follow()
        self.receive(Position("jobs", "master", 0, 0))
        last = 0
        for step in steps:
            if step == "append":
                self.append()
                last += 1
                self.receive(self.row(last))
            elif step[0] == "row" and step[1] > 0:
                self.receive(self.row(last + step[1]))
            elif step[0] == "position" and step[2] > 0:
                self.receive(Position("jobs", "master", max(0, last + step[1]), last + step[2]))
            position = self.position()
            assert position is not None
            assert position <= last
        self.receive(Position("jobs", "master", last, last))
        self.assertEqual(self.handler.tokens, list(range(1, last + 1)))

    def test_accepts_every_token_without_a_source(self) -> None:
        tokens = PossibleTokens(self.world.scheduler, None, self.log)
        self.assertEqual(tokens.accepted(self.world.catalogue["jobs"]), MAX_TOKEN)

    def test_tokens_of_other_writers_count(self) -> None:
        """Writers share the sequence of a stream, and rolled-back tokens are passed."""
        self.append(1)
        lease = done(self.world.store.open_writer("other", [self.world.catalogue["jobs"]]))
        row = self.world.catalogue["jobs"].kinds[""](1, None, None)
        done(lease.append(self.world.catalogue["jobs"], [Draft([[row]])], 0))
        self.follow()
        self.receive(Position("jobs", "other", 2, 2), Position("jobs", "master", 2, 2))
        self.assertEqual(self.handler.tokens, [2, 1])
        done(lease.close())

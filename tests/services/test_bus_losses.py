"""However connections and messages are lost, every fact arrives once and in order (R3)."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any
from unittest import TestCase

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from tests.services.manual_pubsub import NOTES, OTHERS, ManualPubSub, PubSubProcess

NAMES = ("one", "two", "three")
MACHINE = settings(max_examples=150, stateful_step_count=30, deadline=None)


class LosingMessagesMachine(RuleBasedStateMachine):
    """Three processes that write two streams, and follow all three."""

    @initialize()
    def begin(self) -> None:
        """All are there."""
        self.pubsub = ManualPubSub()
        self.all = [PubSubProcess(self.pubsub, name) for name in NAMES]
        self.appended: dict[tuple[str, str], list[list[str]]] = defaultdict(list)
        self.count = 0

    @rule(
        who=st.integers(0, 2),
        rows=st.integers(1, 3),
        stream=st.sampled_from((NOTES, OTHERS)),
        turn=st.booleans(),
    )
    def append(self, who: int, rows: int, stream: Any, turn: bool) -> None:
        """A fact, whose lines leave in this turn or a later one."""
        texts = [f"{self.count}.{row}" for row in range(rows)]
        self.count += 1
        process = self.all[who]
        process.append(*texts, stream=stream)
        self.appended[stream.name, process.name].append(texts)
        if turn:
            self.pubsub.clock.advance(0)

    @rule(who=st.integers(0, 2), count=st.integers(1, 9))
    def leave(self, who: int, count: int) -> None:
        """Some messages reach the server."""
        self.all[who].wires.leave(count)

    @rule(who=st.integers(0, 2), count=st.integers(1, 9))
    def arrive(self, who: int, count: int) -> None:
        """Some messages reach a process."""
        self.all[who].wires.arrive(count)

    @rule(who=st.integers(0, 2))
    def lose(self, who: int) -> None:
        """A process loses its connections."""
        self.all[who].wires.cut()

    @rule(who=st.integers(0, 2))
    def come_back(self, who: int) -> None:
        """They are made again."""
        if not self.all[who].bus.is_connected:
            self.all[who].connect()

    @rule(back=st.permutations(range(3)))
    def settle(self, back: list[int]) -> None:
        """All reconnect, in any order; then every follower has every fact."""
        for who in back:
            self.come_back(who)
        self.pubsub.settle()
        for process in self.all:
            found = {
                key: [[row.text for row in fact.rows] for fact in facts]  # type: ignore[attr-defined]
                for key, facts in process.handler.facts.items()
            }
            assert found == self.appended, (process.name, found, self.appended)

    def teardown(self) -> None:
        """Everything is published in order (R2), and received in the end (R3)."""
        self.settle([2, 0, 1])
        tokens: dict[tuple[bytes, bytes], list[int]] = defaultdict(list)
        for _, line in self.pubsub.published:
            verb, *words = line.split(b" ")
            if verb == b"POSITION":
                tokens[words[0], words[1]].append(int(words[3]))
            elif verb == b"RDATA" and words[2] != b"batch":
                tokens[words[0], words[1]].append(int(words[2]))
        for published in tokens.values():
            assert all(before <= after for before, after in pairwise(published)), published


class LosingMessages(TestCase):
    def test_rows_before_the_answer_to_replicate_hide_no_gap(self) -> None:
        pubsub = ManualPubSub()
        one, two = PubSubProcess(pubsub, "one"), PubSubProcess(pubsub, "two")
        pubsub.settle()
        two.wires.cut()
        one.append("lost")
        pubsub.settle()
        two.connect()
        one.append("heard")  # and nobody has heard REPLICATE yet
        pubsub.clock.advance(0)
        one.wires.leave(9)
        two.wires.arrive(9)
        pubsub.settle()
        tokens = [fact.token for fact in two.handler.facts["notes", "one"]]
        self.assertEqual(tokens, [1, 2])

    def test_no_fact_is_lost_whatever_is_lost_on_the_way(self) -> None:
        run_state_machine_as_test(LosingMessagesMachine, settings=MACHINE)

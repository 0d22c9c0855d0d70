"""Several listeners for one movement."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import TestCase

from synrepl.core.tokens import Token
from synrepl.services.announcing.position_listeners import FanOut
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.synapse.events import EVENTS


class _RecordingListener:
    """Writes its name and what it hears into a list that others write into, too."""

    def __init__(self, name: str, calls: list[tuple[object, ...]], fails: bool = False) -> None:
        self._name = name
        self._calls = calls
        self._fails = fails

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        self._calls.append((self._name, stream.name, writer, prev, new, facts))
        if self._fails:
            raise ValueError

    def linear_advanced(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        self._calls.append((self._name, stream.name, prev, new, facts))


class NotifyingSeveralListeners(TestCase):
    """The order of the listeners."""

    def setUp(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def test_notifies_listeners_of_each_advance_in_their_order(self) -> None:
        facts = (Fact(8, "w", ()),)
        fan_out = FanOut(
            (_RecordingListener("first", self.calls), _RecordingListener("second", self.calls))
        )
        fan_out.writer_advanced(EVENTS, "w", 7, 8, facts)
        fan_out.linear_advanced(EVENTS, 7, 8, None)
        self.assertEqual(
            self.calls,
            [
                ("first", "events", "w", 7, 8, facts),
                ("second", "events", "w", 7, 8, facts),
                ("first", "events", 7, 8, None),
                ("second", "events", 7, 8, None),
            ],
        )

    def test_stops_at_a_listener_that_fails(self) -> None:
        failing = _RecordingListener("caches", self.calls, fails=True)
        fan_out = FanOut((failing, _RecordingListener("followers", self.calls)))
        self.assertRaises(ValueError, fan_out.writer_advanced, EVENTS, "w", 7, 8, ())
        self.assertEqual(len(self.calls), 1)

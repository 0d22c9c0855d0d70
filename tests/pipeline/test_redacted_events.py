"""Sets of redacted events, and the redactions among rows."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.lake.erase import redacted_events as redacted_events_module
from synrepl.pipeline.lake.erase.erasures import RULES
from synrepl.pipeline.lake.erase.redacted_events import AppliedRedactions, RedactedEvents
from synrepl.pipeline.lake.erase.redactions import redacted_events, redactions_among
from synrepl.pipeline.source.database.whole_events import RoomEvent

_IDS = st.text("ab$\0", max_size=3)
_EVENTS = st.lists(st.tuples(_IDS, _IDS), max_size=20)

EVENTS_RULE = RULES[0]

SCHEMA = pa.schema(
    [
        ("stream_id", pa.int64()),
        ("writer", pa.string()),
        ("kind", pa.string()),
        ("room_id", pa.string()),
        ("redacts", pa.string()),
        ("rejected", pa.bool_()),
    ]
)


class Sets(SynchronousTestCase):
    """A set of digests answers as a set of events does."""

    @given(_EVENTS, _EVENTS)
    def test_it_contains_what_was_put_in(
        self, some: list[RoomEvent], asked: list[RoomEvent]
    ) -> None:
        redacted = RedactedEvents.of(some)
        self.assertEqual(len(redacted), len(set(some)))
        found = redacted.contain([room for room, _ in asked], [event for _, event in asked])
        expected = [(room, event) in some or ("", event) in some for room, event in asked]
        self.assertEqual(found.tolist(), expected)

    @given(_EVENTS, _EVENTS)
    def test_two_sets_are_joined(self, some: list[RoomEvent], more: list[RoomEvent]) -> None:
        self.assertEqual(
            RedactedEvents.of(some) | RedactedEvents.of(more), RedactedEvents.of(some + more)
        )

    def test_a_room_that_is_not_known_matches_any_and_no_event_matches_nothing(self) -> None:
        redacted = RedactedEvents.of([("", "$a"), ("!r", "$b"), ("!r", "None")])
        found = redacted.contain([None, "!x", "!r", None, "!r"], ["$a", "$a", "$b", "$b", None])
        self.assertEqual(found.tolist(), [True, True, True, False, False])

    def test_it_takes_some_bytes_for_each_event_also_in_a_pickle(self) -> None:
        redacted = RedactedEvents.of(("!room:example.org", f"${n}") for n in range(10_000))
        self.assertLess(len(pickle.dumps(redacted)), 17 * 10_000)
        self.assertEqual(pickle.loads(pickle.dumps(redacted)), redacted)
        self.assertFalse(RedactedEvents())
        self.assertNotEqual(redacted, RedactedEvents())


class RedactionsAmongRows(SynchronousTestCase):
    """Which rows are redactions, by the rule of the stream."""

    def found(self, *rows: dict[str, Any]) -> RedactedEvents:
        plain = {"stream_id": 1, "writer": "w", "kind": "ev", "room_id": "!r"}
        batch = pa.RecordBatch.from_pylist([{**plain, **row} for row in rows], SCHEMA)
        return redacted_events(redactions_among([batch], EVENTS_RULE))

    def test_only_accepted_events_redact(self) -> None:
        found = self.found(
            {"redacts": "$a"},
            {"redacts": "$b", "rejected": True},
            {"redacts": "$c", "kind": "state"},
            {"redacts": "$d", "rejected": False, "room_id": None},
            {"redacts": None},
        )
        self.assertEqual(found, RedactedEvents.of([("!r", "$a"), ("", "$d")]))
        self.assertTrue(found.contain(["!x"], ["$d"]).all())

    def test_tokens_and_writers_are_told(self) -> None:
        rows = [
            {"stream_id": number, "writer": writer, "kind": "ev", "redacts": "$e"}
            for number, writer in ((-4, "a"), (5, "b"), (6, "a"))
        ]
        (found,) = redactions_among([pa.RecordBatch.from_pylist(rows, SCHEMA)], EVENTS_RULE)
        self.assertEqual(found.tokens.tolist(), [4, 5, 6])
        self.assertEqual([found.writers[code] for code in found.codes], ["a", "b", "a"])
        self.assertEqual(len(np.unique(found.digests)), 1)


class RedactionsThatApply(SynchronousTestCase):
    """Whole events that were redacted: their digests and times."""

    def test_has_its_events_by_room_and_id(self) -> None:
        self.patch(redacted_events_module, "AT_ONCE", 2)
        rows = [("!r", f"${number}", number) for number in range(5)]
        found = AppliedRedactions.of(iter(rows))
        self.assertEqual((len(found), found.times.tolist()), (5, [0, 1, 2, 3, 4]))
        self.assertEqual(
            found.contain(["!r", "!x", None, None, "!r"], ["$4", "$4", "$4", "$9", None]).tolist(),
            [True, False, True, False, False],
        )

    def test_an_event_of_no_known_room_is_not_one_of_any(self) -> None:
        found = AppliedRedactions.of([("!r", "$a", 1)])
        self.assertFalse(found.contain(["!x", ""], ["$a", "$a"]).any())

    def test_an_unknown_time_may_be_any(self) -> None:
        known, unknown = (AppliedRedactions.of([("!r", "$a", at)]) for at in (7, None))
        self.assertIsNone(unknown.times)
        self.assertIsNone((known | unknown).times)
        both = known | AppliedRedactions.of([("!r", "$b", 3)])
        self.assertEqual((len(both), both.times.tolist()), (2, [3, 7]))
        self.assertEqual(len(AppliedRedactions.of([])), 0)

    def test_takes_some_bytes_for_each(self) -> None:
        found = AppliedRedactions.of(("!room:example.org", f"${n:043}", n) for n in range(10_000))
        self.assertLess(len(pickle.dumps(found)), 41 * 10_000)
        in_task = pickle.loads(pickle.dumps(found.without_times()))
        self.assertLess(len(pickle.dumps(in_task)), 33 * 10_000)
        self.assertTrue(in_task.contain([None], [f"${7:043}"]).all())

"""Sets of redacted events, and the redactions among rows."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.lake.data_files import FolderNotShared
from synrepl.pipeline.lake.erase import digest_runs, redacted_events
from synrepl.pipeline.lake.erase.digest_runs import DIGEST_BYTES, DigestRunDamaged
from synrepl.pipeline.lake.erase.erasures import RULES
from synrepl.pipeline.lake.erase.redacted_events import (
    AppliedRedactions,
    RedactedEvents,
    RedactedEventsCollector,
    StoredRedactedEvents,
)
from synrepl.pipeline.lake.erase.redactions import FoundRedactions, RedactionSearch
from synrepl.pipeline.source.database.whole_events import RoomEvent
from synrepl.positions.vector import PositionVector

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


class SetsInFiles(SynchronousTestCase):
    """A set of which only some digests are in memory is no other set."""

    def setUp(self) -> None:
        self.patch(redacted_events, "MOST_HELD", 4)
        self.patch(digest_runs, "AT_ONCE", 3)
        self.folder = Path(self.mktemp()).absolute()

    def collected(self, *sets: RedactedEvents) -> RedactedEvents:
        collector = RedactedEventsCollector(self.folder)
        for each in sets:
            collector.add(each)
        return collector.events()

    def many(self, count: int = 100) -> tuple[list[RoomEvent], RedactedEvents]:
        """Events, and their set in files."""
        some = [("!r", f"${number}") for number in range(count)]
        return some, self.collected(*(RedactedEvents.of([each]) for each in some))

    @settings(max_examples=30)  # each writes files to the disk
    @given(st.lists(_EVENTS, max_size=10), _EVENTS)
    def test_it_contains_what_was_put_in(
        self, sets: list[list[RoomEvent]], asked: list[RoomEvent]
    ) -> None:
        every = RedactedEvents.of(event for each in sets for event in each)
        found = self.collected(*map(RedactedEvents.of, sets))
        self.assertLessEqual(len(found.held), 4)
        self.assertEqual(found, every)
        self.assertEqual(len(found), len(every))
        self.assertEqual(bool(found), bool(every))
        rooms, events = [room for room, _ in asked], [event for _, event in asked]
        self.assertEqual(
            found.contain(rooms, events).tolist(), every.contain(rooms, events).tolist()
        )

    def test_few_files_are_searched(self) -> None:
        some, found = self.many(2000)
        self.assertEqual(len(found), 2000)
        self.assertLess(len(found.runs), 8)
        self.assertTrue(found.contain(*zip(*some, strict=True)).all())
        written = sum(path.stat().st_size for path in self.folder.iterdir())
        self.assertLess(written, 12 * 2000 * DIGEST_BYTES)

    def test_digests_are_merged_in_pieces_of_limited_size(self) -> None:
        _, found = self.many(300)
        pieces = [*found.digests()]
        self.assertEqual(sum(map(len, pieces)), 300)
        self.assertLess(max(map(len, pieces)), 30)

    def test_two_sets_may_share_files(self) -> None:
        some, found = self.many()
        more = RedactedEventsCollector(self.folder, found)
        more.add(RedactedEvents.of([("!s", "$more")]))
        both = found | more.events()
        self.assertEqual(both, RedactedEvents.of([*some, ("!s", "$more")]))

    def test_goes_to_tasks_and_into_records_as_names_of_files(self) -> None:
        _, found = self.many(1000)
        self.assertLess(len(pickle.dumps(found)), 3000)
        self.assertEqual(pickle.loads(pickle.dumps(found)), found)
        data = msgspec.json.encode(StoredRedactedEvents.of(found))
        stored = msgspec.json.decode(data, type=StoredRedactedEvents)
        self.assertEqual(stored.events(self.folder), found)

    def test_a_file_that_was_changed_is_named(self) -> None:
        for change in (
            lambda data: data[:-1],
            lambda data: data + data[:DIGEST_BYTES],
            lambda data: bytes([data[0] ^ 1]) + data[1:],
        ):
            _, found = self.many()
            path = found.runs[0].path
            assert isinstance(path, Path)
            path.write_bytes(change(path.read_bytes()))
            error = self.assertRaises(DigestRunDamaged, found.contain, ["!r"], ["$1"])
            self.assertIn(path.name, str(error))

    def test_nothing_is_lost_when_files_cannot_be_merged_for_a_while(self) -> None:
        collector = RedactedEventsCollector(self.folder)
        some = [("!r", f"${number}") for number in range(10)]
        for event in some[:5]:
            collector.add(RedactedEvents.of([event]))
        (run,) = collector.events().runs
        assert isinstance(run.path, Path)
        digest_runs.mapped_digests.cache_clear()
        elsewhere = run.path.rename(self.folder / "elsewhere")
        for event in some[5:9]:
            collector.add(RedactedEvents.of([event]))
        last = RedactedEvents.of(some[9:])
        self.assertRaises(FolderNotShared, collector.add, last)
        self.assertRaises(FolderNotShared, collector.events, 2)
        elsewhere.rename(run.path)
        self.assertEqual(collector.events(), RedactedEvents.of(some))

    def test_a_file_that_cannot_be_found_is_refused(self) -> None:
        _, found = self.many()
        found.runs[0].path.unlink()
        self.assertRaises(FolderNotShared, found.contain, ["!r"], ["$1"])


class RedactionsAmongRows(SynchronousTestCase):
    """Which rows are redactions, by the rule of the stream."""

    def found(self, *rows: dict[str, Any], **search: Any) -> FoundRedactions:
        plain = {"stream_id": 1, "writer": "w", "kind": "ev", "room_id": "!r"}
        batch = pa.RecordBatch.from_pylist([{**plain, **row} for row in rows], SCHEMA)
        found = FoundRedactions(Path(self.mktemp()))
        found.add_rows([batch], RedactionSearch(EVENTS_RULE, **search))
        return found

    def test_only_accepted_events_redact(self) -> None:
        found = self.found(
            {"redacts": "$a"},
            {"redacts": "$b", "rejected": True},
            {"redacts": "$c", "kind": "state"},
            {"redacts": "$d", "rejected": False, "room_id": None},
            {"redacts": None},
        ).redacted.events()
        self.assertEqual(found, RedactedEvents.of([("!r", "$a"), ("", "$d")]))
        self.assertTrue(found.contain(["!x"], ["$d"]).all())

    def test_only_rows_above_a_position_count(self) -> None:
        rows = [
            {"stream_id": number, "writer": writer, "redacts": f"${number}"}
            for number, writer in ((-3, "a"), (4, "b"), (-5, "a"), (6, "a"), (7, "b"))
        ]
        found = self.found(
            *rows,
            since=PositionVector({"a": 5}, 3),
            new_since=PositionVector({"a": 5, "b": 6}, 3),
        )
        self.assertEqual(
            found.redacted.events(), RedactedEvents.of([("!r", "$4"), ("!r", "$6"), ("!r", "$7")])
        )
        self.assertEqual(found.new.events(), RedactedEvents.of([("!r", "$6"), ("!r", "$7")]))


class RedactionsThatApply(SynchronousTestCase):
    """Whole events that were redacted: their digests and times."""

    def setUp(self) -> None:
        self.collect = AppliedRedactions.collected_in(Path(self.mktemp()).absolute())

    def test_has_its_events_by_room_and_id(self) -> None:
        self.patch(redacted_events, "AT_ONCE", 2)
        rows = [("!r", f"${number}", number) for number in range(5)]
        found = self.collect(iter(rows))
        self.assertEqual((len(found), found.times.tolist()), (5, [0, 1, 2, 3, 4]))
        self.assertEqual(
            found.contain(["!r", "!x", None, None, "!r"], ["$4", "$4", "$4", "$9", None]).tolist(),
            [True, False, True, False, False],
        )

    def test_an_event_of_no_known_room_is_not_one_of_any(self) -> None:
        found = self.collect([("!r", "$a", 1)])
        self.assertFalse(found.contain(["!x", ""], ["$a", "$a"]).any())

    def test_an_unknown_time_may_be_any(self) -> None:
        known, unknown = (self.collect([("!r", "$a", at)]) for at in (7, None))
        self.assertIsNone(unknown.times)
        self.assertIsNone((known | unknown).times)
        both = known | self.collect([("!r", "$b", 3)])
        self.assertEqual((len(both), both.times.tolist()), (2, [3, 7]))
        self.assertEqual(len(self.collect([])), 0)

    def test_takes_some_bytes_for_each(self) -> None:
        found = self.collect(("!room:example.org", f"${n:043}", n) for n in range(10_000))
        self.assertLess(len(pickle.dumps(found)), 41 * 10_000)
        in_task = pickle.loads(pickle.dumps(found.without_times()))
        self.assertLess(len(pickle.dumps(in_task)), 33 * 10_000)
        self.assertTrue(in_task.contain([None], [f"${7:043}"]).all())

    def test_many_are_in_files_and_have_no_times(self) -> None:
        self.patch(redacted_events, "MOST_HELD", 4)
        found = self.collect(("!r", f"${number}", number) for number in range(100))
        self.assertEqual(len(found), 100)
        self.assertIsNone(found.times)
        self.assertTrue(found.events.runs)
        self.assertTrue(found.ids.runs)
        self.assertEqual(
            found.contain(["!r", "!x", None], ["$99", "$99", "$0"]).tolist(), [True, False, True]
        )
        both = found | self.collect([("!s", "$more", 7)])
        self.assertEqual((len(both), both.times), (101, None))

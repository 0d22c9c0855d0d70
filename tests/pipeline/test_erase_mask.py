"""Which cells an erasure clears."""

from __future__ import annotations

import json
from random import Random
from typing import Any
from unittest import TestCase

import pyarrow as pa

from simulator.rooms.random_rooms import RandomRoom
from synrepl.pipeline.lake.erase.erasures import Erasures
from synrepl.pipeline.lake.erase.mask import (
    mask,
    mask_quarantined,
    searched_columns,
    strings,
)
from synrepl.pipeline.lake.erase.redacted_events import AppliedRedactions, RedactedEvents
from synrepl.pipeline.source.database.stream_schema import HEAD, StreamSchema
from synrepl.pipeline.source.database.whole_events import RoomEvent, whole_event_schema
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.streams.columns import Column, ColumnType, columns
from synrepl.streams.synapse.backfill import BACKFILL
from synrepl.streams.synapse.events import EVENTS

ALICE = "@alice:example.org"
BOB = "@bob:example.org"
SOME = StreamSchema(
    "some",
    False,
    (
        Column("text", ColumnType.TEXT, True),
        Column("json", ColumnType.JSON, True),
        Column("tags", ColumnType.TEXT_ARRAY, True),
        Column("n", ColumnType.BIGINT, True),
    ),
)
EVENTS_SHAPE = StreamSchema("events", False, columns(EVENTS))
BACKFILL_SHAPE = StreamSchema("backfill", True, columns(BACKFILL))


def batch(
    stream_schema: StreamSchema, *rows: dict[str, Any], nullable: bool = True
) -> pa.RecordBatch:
    """Rows with their number as the ID, and null in all cells that are not given."""
    schema = arrow_schema(
        (
            *HEAD,
            *(cell._replace(nullable=nullable or cell.nullable) for cell in stream_schema.cells),
        )
    )
    whole = [{"stream_id": at, "row_no": 0, "writer": "w", **row} for at, row in enumerate(rows)]
    return pa.RecordBatch.from_pylist(whole, schema=schema)


def applied(*events: RoomEvent) -> AppliedRedactions:
    """The redactions of some events."""
    ids = RedactedEvents.of(("", event_id) for _, event_id in events)
    return AppliedRedactions(RedactedEvents.of(events), ids)


class MaskSubjects(TestCase):
    def masked(self, name: str, *cells: Any, subjects: frozenset[str]) -> list[Any]:
        before = batch(SOME, *({name: cell, "n": 5} for cell in cells))
        after = mask(before, SOME, Erasures(subjects))
        self.assertTrue(after.schema.equals(before.schema))
        for other in set(before.schema.names) - {name}:
            self.assertTrue(after.column(other).equals(before.column(other)))
        found: list[Any] = after.column(name).to_pylist()
        return found

    def check(self, name: str, *cells: tuple[Any, Any]) -> None:
        """Compare cells before and after masking, for one subject, for some and for many."""
        before, after = zip(*cells, strict=True)
        few = frozenset({ALICE, "@zoe:x"})
        for subjects in (frozenset({ALICE}), few, few | {f"@{n}:x" for n in range(500)}):
            found = self.masked(name, *before, subjects=subjects)
            self.assertEqual(found, list(after))

    def test_a_text_that_is_a_subject_becomes_null(self) -> None:
        self.check(
            "text",
            (ALICE, None),
            (BOB, BOB),
            (ALICE + "x", ALICE + "x"),
            ("", ""),
            (None, None),
            (json.dumps({"by": ALICE}), None),
            (f'she said "{ALICE}"', f'she said "{ALICE}"'),
        )

    def test_json_with_a_subject_becomes_null(self) -> None:
        kept = json.dumps({"users": [BOB, f"x{ALICE}"], "n": [1, True, None]})
        self.check(
            "json",
            (json.dumps(ALICE), None),
            (json.dumps([1, {"a": [ALICE]}]), None),
            (json.dumps({ALICE: {}}), None),
            (f'  {{"a"  :"{ALICE}"}}', None),
            (f'{{"a": "{ALICE}", "a": 1}}', None),
            ('{"a": "\\u0040alice:example.org"}', None),
            (json.dumps({"data": json.dumps({"by": json.dumps([ALICE])})}), None),
            (kept, kept),
            ("{}", "{}"),
            ("null", "null"),
            ("5", "5"),
            (None, None),
        )

    def test_array_elements_that_are_subjects_become_null(self) -> None:
        self.check(
            "tags",
            ([ALICE, BOB], [None, BOB]),
            ([BOB], [BOB]),
            ([], []),
            (None, None),
            ([None, ALICE], [None, None]),
            ([json.dumps({"by": ALICE})], [None]),
        )

    def test_head_columns_are_never_masked(self) -> None:
        before = batch(SOME, {"writer": ALICE, "text": ALICE})
        after = mask(before, SOME, Erasures(frozenset({ALICE})))
        self.assertEqual(after.column("writer").to_pylist(), [ALICE])
        self.assertEqual(after.column("text").to_pylist(), [None])

    def test_columns_that_are_not_nullable_become_so(self) -> None:
        stream_schema = StreamSchema("some", False, (Column("text", ColumnType.TEXT, False),))
        before = batch(stream_schema, {"text": ALICE}, nullable=False)
        after = mask(before, stream_schema, Erasures(frozenset({ALICE})))
        after.validate(full=True)
        self.assertTrue(after.schema.field("text").nullable)
        self.assertFalse(after.schema.field("stream_id").nullable)

    def test_an_unchanged_batch_is_returned_as_the_same_object(self) -> None:
        rows = batch(SOME, {"text": BOB, "json": json.dumps([BOB, "\\"]), "tags": [BOB], "n": 1})
        nobody = Erasures()
        self.assertFalse(nobody)
        self.assertIs(mask(rows, SOME, nobody), rows)
        self.assertIs(mask(rows, SOME, Erasures(frozenset({ALICE}))), rows)
        some = batch(SOME, {"text": ALICE, "tags": [ALICE]})
        once = mask(some, SOME, Erasures(frozenset({ALICE})))
        self.assertIs(mask(once, SOME, Erasures(frozenset({ALICE}))), once)

    def test_slices_of_batches_are_masked(self) -> None:
        whole = batch(SOME, *({"tags": [name], "text": name} for name in (BOB, ALICE, BOB, ALICE)))
        after = mask(whole.slice(1, 2), SOME, Erasures(frozenset({ALICE})))
        self.assertEqual(after.column("tags").to_pylist(), [[None], [BOB]])
        self.assertEqual(after.column("text").to_pylist(), [None, BOB])

    def test_quarantined_rows_are_masked(self) -> None:
        schema = pa.schema([("writer", pa.string()), ("n", pa.int64()), ("reason", pa.string())])
        rows = [
            {"writer": ALICE, "n": 1, "reason": f"bad value of {ALICE}!"},
            {"writer": "x", "n": 2, "reason": '"\\u0040alice:example.org is bad"'},
            {"writer": "x", "n": 3, "reason": f"bad value of {BOB}"},
            {"writer": "x", "n": 4, "reason": None},
        ]
        before = pa.RecordBatch.from_pylist(rows, schema=schema)
        after = mask_quarantined(before, Erasures(frozenset({ALICE})))
        self.assertEqual(
            after.column("reason").to_pylist(), [None, None, f"bad value of {BOB}", None]
        )
        self.assertEqual(after.column("writer").to_pylist(), [ALICE, "x", "x", "x"])
        self.assertIs(mask_quarantined(before, Erasures()), before)

    def test_strings_are_found_in_invalid_json(self) -> None:
        self.assertEqual(list(strings('{"a": "b')), ["a"])
        self.assertEqual(list(strings('"\\q"')), ["\\q"])
        self.assertEqual(list(strings('"' + "\\" * 101)), [])
        self.assertEqual(list(strings('"\\ud800"')), ["\ud800"])


class MaskRedactions(TestCase):
    def masked(
        self, stream_schema: StreamSchema, *rows: dict[str, Any], redacted: set[tuple[str, str]]
    ) -> Any:
        before = batch(stream_schema, *rows)
        return mask(before, stream_schema, Erasures(redacted=RedactedEvents.of(redacted)))

    def test_only_the_cleared_columns_are_emptied(self) -> None:
        row = {
            "kind": "ev",
            "event_id": "$e",
            "room_id": "!r",
            "type": "m.room.member",
            "state_key": ALICE,
            "redacts": "$other",
            "relates_to": "$root",
            "membership": "join",
            "rejected": False,
            "outlier": False,
        }
        after = self.masked(EVENTS_SHAPE, row, redacted={("!r", "$e")}).to_pylist()[0]
        head = {"stream_id": 0, "row_no": 0, "writer": "w"}
        self.assertEqual(after, {**head, **row, "relates_to": None})

    def test_room_and_event_have_to_match(self) -> None:
        rows = [
            {"kind": "ev", "event_id": event, "room_id": room, "relates_to": "$root"}
            for room, event in (("!r", "$e"), ("!r", "$f"), ("!s", "$e"), ("!s", "$g"))
        ]
        rows.append({**rows[0], "kind": "state"})
        after = self.masked(EVENTS_SHAPE, *rows, redacted={("!r", "$e"), ("", "$g")})
        self.assertEqual(
            after.column("relates_to").to_pylist(), [None, "$root", "$root", None, "$root"]
        )

    def test_backfilled_events_are_masked(self) -> None:
        row = {"event_id": "$e", "room_id": "!r", "type": "m", "relates_to": "$root"}
        after = self.masked(BACKFILL_SHAPE, row, redacted={("!r", "$e")})
        self.assertEqual(after.column("relates_to").to_pylist(), [None])

    def test_a_declared_stream_of_the_same_name_is_not_masked(self) -> None:
        stream_schema = StreamSchema(
            "events", False, (Column("relates_to", ColumnType.TEXT, True),)
        )
        before = batch(stream_schema, {"relates_to": "$root"})
        self.assertIs(
            mask(before, stream_schema, Erasures(redacted=RedactedEvents.of([("!r", "$e")]))),
            before,
        )

    def test_a_redaction_applies_when_its_room_is_erased_as_well(self) -> None:
        row = {"kind": "ev", "event_id": "$e", "room_id": "!r", "relates_to": "$root"}
        erasures = Erasures(frozenset({"!r"}), RedactedEvents.of([("!r", "$e")]))
        after = mask(batch(EVENTS_SHAPE, row), EVENTS_SHAPE, erasures).to_pylist()[0]
        self.assertEqual((after["room_id"], after["relates_to"]), (None, None))


class MaskWholeEvents(TestCase):
    """Whole events, which are redacted only where a redaction applies."""

    shape = whole_event_schema("room_events")

    def masked(self, erasures: Erasures, *rows: dict[str, Any]) -> list[dict[str, Any]]:
        before = batch(self.shape, *rows)
        after = mask(before, self.shape, erasures)
        self.assertTrue(after.schema.equals(before.schema))
        # What is masked is left as it is.
        self.assertIs(mask(after, self.shape, erasures), after)
        found: list[dict[str, Any]] = after.to_pylist()
        return found

    def message(self, body: str, **cells: Any) -> dict[str, Any]:
        made = RandomRoom(Random(1), "10")
        event = made.maker.event(
            "m.room.message", {"body": body}, made.events[-1:], made.events[:1]
        )
        return {
            "room_id": "!r",
            "event_id": body,
            "stored": True,
            "room_version": "10",
            "sender": event.sender,
            "redacted": False,
            "json": event.raw.decode(),
            **cells,
        }

    def test_events_to_which_a_redaction_applies_get_their_form(self) -> None:
        rows = [self.message("a"), self.message("b"), self.message("c", redacted=None, json=None)]
        erasures = Erasures(applied=applied(("!r", "a"), ("!other", "b"), ("!r", "c")))
        first, second, third = self.masked(erasures, *rows)
        self.assertTrue(first["redacted"])
        self.assertEqual(json.loads(first["json"])["content"], {})
        self.assertEqual((second["redacted"], second["json"]), (False, rows[1]["json"]))
        self.assertEqual((third["redacted"], third["json"]), (None, None))

    def test_an_event_whose_room_was_erased_is_known_by_its_id(self) -> None:
        erasures = Erasures(applied=applied(("!r", "a")))
        rows = [self.message("a", room_id=None), self.message("b", room_id=None)]
        first, second = self.masked(erasures, *rows)
        self.assertEqual((first["redacted"], second["redacted"]), (True, False))

    def test_json_that_cannot_be_redacted_is_left_out(self) -> None:
        erasures = Erasures(applied=applied(("!r", "a")))
        for cells in ({"json": '{"secret'}, {"room_version": "none"}, {"room_version": None}):
            (row,) = self.masked(erasures, self.message("a", **cells))
            self.assertEqual((row["redacted"], row["json"]), (True, None))

    def test_redactions_that_only_the_lake_has_take_nothing(self) -> None:
        before = batch(self.shape, self.message("a"))
        erasures = Erasures(redacted=RedactedEvents.of([("!r", "a")]))
        self.assertIs(mask(before, self.shape, erasures), before)

    def test_a_subject_leaves_nothing_of_it(self) -> None:
        sender = self.message("a")["sender"]
        refusal = f"auth not-joined {sender} is not in the room"
        rows = [self.message("a", refusal=refusal), self.message("b", sender=BOB, refusal="no")]
        first, second = self.masked(Erasures(frozenset({sender})), *rows)
        self.assertEqual([first[name] for name in ("sender", "json", "refusal")], [None] * 3)
        self.assertEqual(
            [second[name] for name in ("sender", "json", "refusal")], [BOB, None, "no"]
        )

    def test_a_declared_stream_of_the_name_is_not_one(self) -> None:
        other = StreamSchema("room_events", False, (Column("event_id", ColumnType.TEXT, True),))
        before = batch(other, {"event_id": "a"})
        erasures = Erasures(applied=applied(("!r", "a")))
        self.assertIs(mask(before, other, erasures), before)

    def test_only_columns_that_may_tell_are_searched(self) -> None:
        subjects, redacted = frozenset({ALICE}), RedactedEvents.of([("!r", "a")])
        one = applied(("!r", "a"))
        for shape, erasures, wanted in (
            (self.shape, Erasures(applied=one), {"room_id", "event_id", "redacted"}),
            (EVENTS_SHAPE, Erasures(applied=one), set()),
            (SOME, Erasures(redacted=redacted), set()),
            (SOME, Erasures(subjects), {"text", "json", "tags"}),
            (
                BACKFILL_SHAPE,
                Erasures(redacted=redacted),
                {"room_id", "event_id", "relates_to"},
            ),
            (
                EVENTS_SHAPE,
                Erasures(redacted=redacted),
                {"kind", "room_id", "event_id", "relates_to"},
            ),
        ):
            self.assertEqual({each.name for each in searched_columns(shape, erasures)}, wanted)

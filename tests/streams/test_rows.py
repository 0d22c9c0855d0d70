"""Rows to bytes and cells and back, and refused rows."""

from __future__ import annotations

import json
from contextlib import suppress
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.core.jsons import MAX_DEPTH
from synrepl.streams.columns import ColumnType, columns
from synrepl.streams.declared import declare
from synrepl.streams.definition import Generation, Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import BadRow, MalformedRow, RowCodec
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.streams.synapse.caches import CACHES
from synrepl.streams.synapse.device_lists import DEVICE_LISTS, DeviceListsRow
from synrepl.streams.synapse.events import EVENTS, AllStateRow, EventRow, StateRow
from synrepl.streams.synapse.federation import FEDERATION, FederationRow
from synrepl.streams.synapse.presence import PresenceRow
from synrepl.streams.synapse.receipts import RECEIPTS, ReceiptRow
from synrepl.streams.synapse.typing import TYPING, TypingRow
from tests.streams.strategies import rows

JOBS = declare(
    "jobs",
    {"id": "bigint", "tags": "text[]", "cost": "double?", "done": "boolean", "more": "json?"},
)
damaged = st.text('[]{}",\\ud80:1en', max_size=20).map(str.encode)
CODECS = [RowCodec(stream) for stream in (*SYNAPSE_STREAMS, JOBS)]


def narrowed(row: Row, stream: Stream, generation: Generation) -> Row:
    """The row that remains after a peer of ``generation`` has relayed it."""
    kind = next(kind for kind, cls in stream.kinds.items() if cls is type(row))
    shape = stream.shape(generation, kind)
    return type(row)(**{name: getattr(row, name) for name in shape})


def as_postgres_gives(cell: object, type_: ColumnType) -> object:
    """Undo :func:`synrepl.streams.columns.sql_input`, as the database and its driver do."""
    if cell is None or type_ not in (ColumnType.JSON, ColumnType.TEXT_ARRAY, ColumnType.DOUBLE):
        return cell
    assert isinstance(cell, str)
    if type_ is ColumnType.DOUBLE:
        return float(cell)
    # The array literals that are made here are JSON but for the braces.
    return json.loads(cell if type_ is ColumnType.JSON else f"[{cell[1:-1]}]", strict=False)


class RoundTrips(TestCase):
    """Every stream, every generation."""

    @settings(max_examples=400, deadline=None)
    @given(st.data())
    def test_rows_survive_the_wire(self, data: st.DataObject) -> None:
        codec = data.draw(st.sampled_from(CODECS), "codec")
        row = data.draw(rows(codec.stream), "row")
        codec.check_storable(row)
        for generation in Generation:
            line = codec.encoder(generation)(row)
            self.assertNotIn(b"\n", line)
            self.assertEqual(codec.decode(line), narrowed(row, codec.stream, generation))

    @settings(max_examples=200, deadline=None)
    @given(st.data())
    def test_rows_survive_the_database(self, data: st.DataObject) -> None:
        codec = data.draw(st.sampled_from(CODECS), "codec")
        row = data.draw(rows(codec.stream), "row")
        cells = codec.cells(row)
        wanted = columns(codec.stream)
        self.assertEqual(len(cells), len(wanted))
        read = [as_postgres_gives(cell, c.type) for cell, c in zip(cells, wanted, strict=True)]
        self.assertEqual(codec.from_cells(read), row)

    @settings(max_examples=300, deadline=None)
    @given(st.sampled_from(CODECS), st.binary(max_size=30) | damaged)
    def test_any_damage_has_a_defined_refusal(self, codec: RowCodec, line: bytes) -> None:
        with suppress(BadRow, MalformedRow):
            codec.decode(line)


class DecodeTests(TestCase):
    def test_decodes_events_of_every_generation(self) -> None:
        codec = RowCodec(EVENTS)
        legacy = codec.decode(b'["ev", ["$e", "!r", "t", null, null, null]]')
        self.assertEqual(legacy, EventRow("$e", "!r", "t", None, None, None, None, False, False))
        modern = codec.decode(b'["ev",["$e","!r","t",null,null,null,"join",true]]')
        self.assertEqual(modern, EventRow("$e", "!r", "t", None, None, None, "join", True))
        self.assertEqual(codec.decode(b'["state-all",["!r"]]'), AllStateRow("!r"))
        self.assertEqual(codec.kind_of(StateRow("!r", "t", "", None)), "state")

    def test_decodes_device_lists_of_every_generation(self) -> None:
        codec = RowCodec(DEVICE_LISTS)
        for line, row in {
            b'["@u",null]': DeviceListsRow("@u"),
            b'["@u","host"]': DeviceListsRow("@u", "host"),
            b'["@u"]': DeviceListsRow("@u"),
            b'["@u",true,false]': DeviceListsRow("@u", None, True, False),
        }.items():
            self.assertEqual(codec.decode(line), row)

    def test_decodes_receipts_of_every_generation(self) -> None:
        codec = RowCodec(RECEIPTS)
        self.assertEqual(
            codec.decode(b'["!r","m.read","@u","$e",{"ts":1}]'),
            ReceiptRow("!r", "m.read", "@u", "$e", {"ts": 1}, None),
        )
        threaded = ReceiptRow("!r", "m.read", "@u", "$e", {}, "$t")
        self.assertEqual(codec.decode(b'["!r","m.read","@u","$e","$t",{}]'), threaded)
        self.assertEqual(
            codec.encoder(Generation.CURRENT)(threaded), b'["!r","m.read","@u","$e","$t",{}]'
        )
        self.assertEqual(
            codec.encoder(Generation.MODERN)(threaded), b'["!r","m.read","@u","$e",{}]'
        )

    def check(self, stream: Stream, line: bytes, path: str, reason: str) -> None:
        with self.assertRaises(BadRow, msg=line[:60]) as caught:
            RowCodec(stream).decode(line)
        self.assertIn(
            f"stream {stream.name!r} cannot be accepted, at {path}: ", str(caught.exception)
        )
        self.assertIn(reason, str(caught.exception))
        self.assertLess(len(str(caught.exception)), 400)

    def test_bad_rows_name_stream_path_and_reason(self) -> None:
        self.check(EVENTS, b'["ev",["$e",1,"t",null,null,null]]', "$[1][1]", "`str`")
        self.check(EVENTS, b'["ev",["$e"]]', "$[1]", "length")
        self.check(EVENTS, b'["state-all",["!r"],1]', "$", "length")
        self.check(EVENTS, b'["evil",[]]', "$[0]", "evil")
        self.check(EVENTS, b'["' + b"x" * 9999 + b'",[]]', "$[0]", "xxx")
        self.check(EVENTS, b"{}", "$", "`array`")
        self.check(CACHES, b'["f",{},1]', "$[1]", "`array | null`")
        self.check(CACHES, b'["f",null,9223372036854775808]', "$[2]", "9223372036854775807")
        self.check(CACHES, b'["f",null,true]', "$[2]", "`int`")
        self.check(CACHES, b'["f",null,1,2]', "$", "length")
        self.check(DEVICE_LISTS, b'["@u",5]', "$[1]", "`int`")
        self.check(RECEIPTS, b'["!r","m.read","@u",4,{}]', "$[3]", "`str`")
        self.check(TYPING, b'["\\ud800",[]]', "$", "surrogate")
        self.check(FEDERATION, b'["p",1e999]', "$[1]", "range")

    def test_refuses_deep_nesting(self) -> None:
        codec = RowCodec(FEDERATION)
        deep = b'["p",' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"]"
        wide = b'["p",[' + b"[]," * 500 + b"[]]]"
        self.assertIsInstance(codec.decode(deep), FederationRow)
        self.assertIsInstance(codec.decode(wide), FederationRow)
        self.check(FEDERATION, deep.replace(b"[]", b"[[]]"), "$[1]", "deeper")
        # Where the decoder gives up depends on how much stack Python has.
        far = b'["p",' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"]"
        with self.assertRaisesRegex(BadRow, r"at \$(\[1\])?: nested deeper"):
            codec.decode(far)
        with self.assertRaises(BadRow):
            RowCodec(TYPING).decode(b"[" * 5000 + b"]" * 5000)

    def test_invalid_json_is_distinguished_from_a_bad_row(self) -> None:
        codec = RowCodec(TYPING)
        for line in (b"", b"[", b"[1,", b'["!r",[]] x', b"[NaN]", b'["\xff",[]]', b'["\n",[]]'):
            with self.assertRaisesRegex(
                MalformedRow, "stream 'typing' is not valid JSON", msg=line
            ):
                codec.decode(line)

    def test_rows_hold_nul_when_they_come_from_elsewhere(self) -> None:
        self.assertEqual(RowCodec(TYPING).decode(b'["\\u0000",[]]'), TypingRow("\0", []))


class StorableTests(TestCase):
    def check(self, stream: Stream, row: Row, path: str, reason: str) -> None:
        with self.assertRaises(BadRow) as caught:
            RowCodec(stream).check_storable(row)
        self.assertIn(f"at {path}: ", str(caught.exception))
        self.assertIn(reason, str(caught.exception))

    def receipt(self, data: object) -> ReceiptRow:
        return ReceiptRow("!r", "m.read", "@u", "$e", data)

    def test_refuses_text_that_cannot_be_stored(self) -> None:
        self.check(TYPING, TypingRow("!r", ["@a", "\0"]), "$[1][1]", "NUL")
        self.check(TYPING, TypingRow("\ud800", []), "$[0]", "surrogate")
        self.check(EVENTS, AllStateRow("!\0"), "$[1][0]", "NUL")
        RowCodec(TYPING).check_storable(TypingRow("\\u0000", []))  # the text, not the character

    def test_refuses_bad_values_inside_json(self) -> None:
        for data, path, reason in [
            ({"a": [1, "\0"]}, "$[4].a[1]", "NUL"),
            ({"\0": 1}, "$[4]", "in a key"),
            ({"a": {1: 2}}, "$[4].a", "a key is not text but int"),
            ([float("nan")], "$[4][0]", "nan"),
            (float("-inf"), "$[4]", "-inf"),
            ({"a": (1,)}, "$[4].a", "tuple"),
            (b"x", "$[4]", "bytes"),
            ("\udfff", "$[4]", "surrogate"),
            (object(), "$[4]", "object"),
        ]:
            self.check(RECEIPTS, self.receipt(data), path, reason)
        deep: object = 1
        for _ in range(MAX_DEPTH):
            deep = [deep]
        RowCodec(RECEIPTS).check_storable(self.receipt(deep))
        for data in ([deep], {"a": deep}):
            with self.assertRaisesRegex(BadRow, "deeper"):
                RowCodec(RECEIPTS).check_storable(self.receipt(data))

    def test_refuses_types_that_the_constructor_did_not_check(self) -> None:
        presence = PresenceRow("@u", "online", 2**63, 0, 0, None, True)
        self.check(RowCodec(SYNAPSE_STREAMS[2]).stream, presence, "$[2]", "9223372036854775807")
        self.check(TYPING, TypingRow(5, []), "$[0]", "`str`")  # type: ignore[arg-type]
        self.check(EVENTS, AllStateRow(None), "$[1][0]", "`str`")  # type: ignore[arg-type]

    def test_refuses_floats_that_json_lacks(self) -> None:
        row = JOBS.kinds[""]
        RowCodec(JOBS).check_storable(row(1, [], 2, True))
        self.check(JOBS, row(1, [], float("inf"), True), "$[2]", "inf")

    def test_refuses_rows_of_other_streams(self) -> None:
        codec = RowCodec(TYPING)
        for refuse in (codec.check_storable, codec.cells, codec.kind_of):
            with self.assertRaisesRegex(BadRow, "AllStateRow is not a row of this stream"):
                refuse(AllStateRow("!r"))

    def test_refuses_an_unknown_kind_in_the_table(self) -> None:
        with self.assertRaisesRegex(BadRow, "'later' is not known"):
            RowCodec(EVENTS).from_cells(["later", *[None] * 9])

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from io import BytesIO
from typing import Any
from unittest import TestCase

import ijson
from hypothesis import given
from hypothesis import strategies as st

from synrepl.core import jsons
from synrepl.core.jsons import BadJson
from synrepl.federation.event_scanner import (
    CHUNK,
    MAX_ELEMENT,
    MAX_ELEMENT_DEPTH,
    MAX_ELEMENTS,
    MAX_MEMBERS,
    BadJsonObject,
    index_object,
    indexing,
    read_elements,
)
from tests.federation.recordings import VERSIONS, answer

WANTED = ("state", "auth_chain", "event", "members_omitted")

EVENT = {
    "auth_events": ["$a", "$b"],
    "content": {"body": 'quotes " and \\ and },{ and "," and ]}', "list": [{"a": 1}, {"b": []}]},
    "depth": 12,
    "hashes": {"sha256": "x" * 43},
    "type": "m.room.message",
}

#: How documents may be written.
STYLES: tuple[dict[str, Any], ...] = (
    {"separators": (",", ":")},
    {},
    {"indent": 1},
    {"separators": (" , ", " : ")},
    {"ensure_ascii": False, "separators": (",", ":")},
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["},{", '","', "\\"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
documents = st.dictionaries(
    st.sampled_from([*WANTED, "other", ""]), st.lists(json_values) | json_values
)


def elements(document: bytes, name: str) -> list[bytes]:
    """The elements that are found in an array of a document."""
    body = BytesIO(document)
    return list(read_elements(body, index_object(body, WANTED).arrays[name]))


def refusal(document: bytes) -> str:
    """Why a document is refused."""
    try:
        index_object(BytesIO(document), WANTED)
    except BadJsonObject as error:
        return str(error)
    raise AssertionError("it was not refused")


class FindsWhatIsThere(TestCase):
    def check(self, document: bytes) -> None:
        body = BytesIO(document)
        index = index_object(body, WANTED)
        for name, value in json.loads(document).items():
            if name not in WANTED:
                self.assertNotIn(name, index.arrays)
                self.assertNotIn(name, index.values)
            elif isinstance(value, list):
                found = list(read_elements(body, index.arrays[name]))
                self.assertEqual([json.loads(each) for each in found], value)
                self.assertEqual(index.arrays[name].size, len(value))
                self.assertNotIn(name, index.values)
            else:
                self.assertEqual(json.loads(index.values[name]), value)
                self.assertNotIn(name, index.arrays)

    @given(documents, st.sampled_from(STYLES))
    def test_as_a_parser_does(self, document: dict[str, Any], style: dict[str, Any]) -> None:
        self.check(json.dumps(document, **style).encode())

    def test_in_documents_of_many_chunks_in_every_style(self) -> None:
        events = [{**EVENT, "depth": number} for number in range(3000)]
        document = {"event": EVENT, "state": events, "members_omitted": True, "auth_chain": events}
        for style in STYLES:
            with self.subTest(style):
                self.check(json.dumps(document, **style).encode())

    def test_whatever_the_chunks_cut(self) -> None:
        for cut in range(80):
            state = [EVENT] * (2 * CHUNK // len(json.dumps(EVENT)))
            self.check(json.dumps({"x" * cut: "", "state": state, "auth_chain": []}).encode())

    def test_arrays_of_text_and_of_numbers(self) -> None:
        for state in (["$" + "a" * 43] * 10_000, list(range(30_000)), [[]] * 50_000):
            self.check(json.dumps({"state": state}, separators=(",", ":")).encode())

    def test_the_same_elements_as_another_streaming_parser(self) -> None:
        for version in VERSIONS:
            for name in ("send_join-full", "send_join-partial"):
                document = answer(version, name)
                for member in ("state", "auth_chain"):
                    found = map(json.loads, elements(document, member))
                    items = ijson.items(BytesIO(document), f"{member}.item", use_float=True)
                    self.assertEqual(list(found), list(items))

    def test_the_bytes_are_those_that_came(self) -> None:
        odd = b'{ "a":1.0,"b" :"\\u00e9",\n"a":2}'
        self.assertEqual(elements(b'{"state":[ %b , %b ]}' % (odd, odd), "state"), [odd, odd])

    def test_of_duplicate_keys_the_last_one_counts(self) -> None:
        self.assertEqual(elements(b'{"state":[1],"state":[2,3]}', "state"), [b"2", b"3"])
        index = index_object(BytesIO(b'{"state":[1],"state":"text"}'), WANTED)
        self.assertEqual((index.arrays, index.values), ({}, {"state": b'"text"'}))
        index = index_object(BytesIO(b'{"event":{},"event":[]}'), WANTED)
        self.assertEqual((list(index.arrays), index.values), (["event"], {}))

    def test_escaped_names(self) -> None:
        self.assertEqual(elements(b'{"st\\u0061te":[1]}', "state"), [b"1"])

    def test_an_object_after_a_status(self) -> None:
        self.assertEqual(elements(b' [200, {"state":[1]} ] ', "state"), [b"1"])
        refusal(b'[200, {"state":[1]}')
        refusal(b'[200, {"state":[1]}, 1]')
        refusal(b"[200]")


class RefusesWhatIsMalformed(TestCase):
    DOCUMENT = json.dumps({"event": EVENT, "state": [EVENT, "a", 1], "auth_chain": []}).encode()

    def test_every_part_of_a_document(self) -> None:
        for size in range(len(self.DOCUMENT)):
            refusal(self.DOCUMENT[:size])

    def test_a_part_of_a_document_of_many_chunks(self) -> None:
        document = json.dumps({"state": [EVENT] * 2000}, separators=(",", ":")).encode()
        for size in range(0, len(document), 9_973):
            refusal(document[:size])

    def test_what_follows_a_document(self) -> None:
        self.assertIn("something follows it", refusal(self.DOCUMENT + b" {}"))

    def test_what_a_parser_refuses(self) -> None:
        for document in (
            b" ",
            b'{"state":[1,]}',
            b'{"state":[,1]}',
            b'{"state":[1 2]}',
            b'{"state":[{"a":tru}]}',
            b'{"state":[{"a":1]]}',
            b'{"state":[{"a":1}}',
            b'{"state":[{"a":1}{"a":1}]}',
            b'{"state":[]]}',
            b'{"state":[],}',
            b'{"state":[] "auth_chain":[]}',
            b'{"state"[]}',
            b"{state:[]}",
            b'{"state":nul}',
            b'{"event":{"a":01}}',
            b'{"\\q":1}',
            b"{1:1}",
        ):
            with self.subTest(document):
                self.assertRaises(BadJson, jsons.decode, document, "it")
                refusal(document)

    def test_what_is_no_object(self) -> None:
        for document in (b"null", b"[]", b"1", b'"{}"', b"[200]"):
            refusal(document)

    @given(documents, st.data())
    def test_refuses_or_finds_what_a_parser_finds(
        self, document: dict[str, Any], data: Any
    ) -> None:
        text = bytearray(json.dumps(document, separators=(",", ":")).encode())
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.sampled_from(b'[]{},:"\\ 1a'))
        try:
            parsed = jsons.decode(bytes(text), "it")
        except BadJson:
            refusal(bytes(text))
            return
        if isinstance(parsed, dict):
            FindsWhatIsThere().check(bytes(text))

    def test_nesting_of_any_depth_at_once(self) -> None:
        for start, part in ((b'{"state":', b"["), (b'{"state":[', b'{"a":'), (b'{"other":', b"[")):
            for closing in (b"", b"]" * 200_000 + b"}"):
                reason = refusal(start + part * 200_000 + closing)
                self.assertIn(f"nested deeper than {MAX_ELEMENT_DEPTH} levels", reason)

    def test_too_large_parts(self) -> None:
        size = 40 * MAX_ELEMENT
        for document in (
            b'{"state":["' + b"a" * size + b'"]}',
            b'{"state":["' + b"},{" * size + b'"]}',
            b'{"event":"' + b"a" * size + b'"}',
            b'{"other":{"a":"' + b"a" * size + b'"}}',
            b'{"state":[' + b"1" * size + b"]}",
            b'{"' + b"a" * size + b'":1}',
        ):
            self.assertIn("more than", refusal(document))

    def test_too_many_parts(self) -> None:
        reason = refusal(b'{"state":[' + b"1," * MAX_ELEMENTS + b"1]}")
        self.assertIn(f"more than {MAX_ELEMENTS} elements", reason)
        members = b",".join(b'"%d":1' % number for number in range(MAX_MEMBERS + 1))
        self.assertIn(f"more than {MAX_MEMBERS} members", refusal(b"{%b}" % members))


class Endless(BytesIO):
    """A document of 50 MB that takes no memory."""

    def __init__(self) -> None:
        super().__init__()
        event = json.dumps(EVENT, separators=(",", ":")).encode()
        self._block = b",".join([event] * (CHUNK // len(event)))
        self._parts = self._all()
        self._rest = b""
        self.size = 0

    def _all(self) -> Iterator[bytes]:
        yield b'{"state":['
        for _ in range(50 * 2**20 // CHUNK):
            yield self._block + b","
        yield self._block + b"]}"

    def read(self, size: int | None = -1) -> bytes:
        """Any number of bytes."""
        assert size is not None
        assert size >= 0
        if not self._rest:
            self._rest = next(self._parts, b"")
        found, self._rest = self._rest[:size], self._rest[size:]
        self.size += len(found)
        return found


class NeedsLittle(TestCase):
    def test_memory_is_that_of_two_batches(self) -> None:
        body = Endless()
        tracemalloc.start()
        try:
            index = index_object(body, WANTED)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertGreater(body.size, 45 * 2**20)
        self.assertGreater(index.arrays["state"].size, 100_000)
        self.assertLess(peak, 2 * 4 * CHUNK)

    def test_batches_are_read_one_at_a_time(self) -> None:
        document = json.dumps({"state": [EVENT] * 20_000}, separators=(",", ":")).encode()
        body = BytesIO(document)
        index = index_object(body, WANTED)
        del document
        self.assertGreater(len(index.arrays["state"].batches), 20)
        tracemalloc.start()
        try:
            for _ in read_elements(body, index.arrays["state"]):
                pass
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertLess(peak, 8 * CHUNK)

    def test_each_step_is_a_chunk(self) -> None:
        document = json.dumps({"state": [EVENT] * 5000}, separators=(",", ":")).encode()
        sizes = list(indexing(BytesIO(document), WANTED))
        self.assertEqual(sum(sizes), len(document))
        self.assertLessEqual(max(sizes), CHUNK)

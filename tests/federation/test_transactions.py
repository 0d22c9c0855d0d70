from __future__ import annotations

import json
from typing import Any
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from synrepl.core.errors import SynreplError
from synrepl.federation.transactions import (
    MAX_EDU,
    MAX_EDUS,
    MAX_PDUS,
    BadTransaction,
    Edu,
    parse_transaction,
    transaction_content,
)
from synrepl.rooms import canonical_json, parse_event, room_version
from tests.federation.recordings import VERSIONS, recording

TYPING = {"edu_type": "m.typing", "content": {"typing": True}}


def parsed(**members: Any) -> Any:
    """A transaction."""
    document = {"origin": "a.example", "origin_server_ts": 5, "pdus": [], "edus": []}
    return parse_transaction(json.dumps(document | members).encode())


class Reads(TestCase):
    def test_recorded_transactions(self) -> None:
        for version in VERSIONS:
            for document in recording(version, "inbound/transactions"):
                found = parse_transaction(json.dumps(document).encode())
                self.assertEqual(found.origin_server_ts, document["origin_server_ts"])
                self.assertEqual(list(map(json.loads, found.pdus)), document["pdus"])
                edus = [Edu(each["edu_type"], each["content"]) for each in document.get("edus", ())]
                self.assertEqual(list(found.edus), edus)
                self.assertEqual(found.ignored, 0)
                for pdu in found.pdus:
                    parse_event(pdu, room_version(version))

    def test_events_as_they_came(self) -> None:
        pdu = b'{ "b" :1.0,"a":"\\u00e9" }'
        self.assertEqual(parse_transaction(b'{"pdus": [ %b , 1 ] }' % pdu).pdus, (pdu,))

    def test_the_rest_beside_what_is_no_object(self) -> None:
        odd = [None, True, 1, "text", [], [{}]]
        found = parsed(pdus=[*odd, {"a": 1}, *odd], edus=[*odd, TYPING, *odd])
        self.assertEqual(found.pdus, (b'{"a": 1}',))
        self.assertEqual(found.edus, (Edu("m.typing", {"typing": True}),))
        self.assertEqual(found.ignored, 4 * len(odd))

    def test_the_rest_beside_what_is_no_edu(self) -> None:
        deep: dict[str, Any] = {}
        for _ in range(150):
            deep = {"a": deep}
        for odd in (
            {},
            {"edu_type": "m.typing"},
            {"edu_type": 1, "content": {}},
            {"edu_type": "m.typing", "content": []},
            {"edu_type": "m.typing", "content": {"a": "x" * MAX_EDU}},
            {"edu_type": "m.typing", "content": deep},
        ):
            found = parsed(edus=[odd, TYPING])
            self.assertEqual((len(found.edus), found.ignored), (1, 1))

    def test_without_pdus_or_edus(self) -> None:
        for document in (b"{}", b'{"pdus":[]}', b'{"edus":[]}'):
            self.assertEqual(parse_transaction(document), (0, (), (), 0, ()))

    def test_whatever_the_time_is(self) -> None:
        for time in (-1, "1", None, 1.5, 2**70, {}):
            self.assertEqual(parsed(origin_server_ts=time).origin_server_ts, 0)

    def test_the_largest(self) -> None:
        found = parsed(pdus=[{}] * MAX_PDUS, edus=[TYPING] * MAX_EDUS)
        self.assertEqual((len(found.pdus), len(found.edus)), (MAX_PDUS, MAX_EDUS))

    def test_refuses_more(self) -> None:
        self.assertRaises(BadTransaction, parsed, pdus=[{}] * (MAX_PDUS + 1))
        self.assertRaises(BadTransaction, parsed, edus=[TYPING] * (MAX_EDUS + 1))

    def test_refuses_what_is_no_transaction(self) -> None:
        for document in (
            b"",
            b"[]",
            b"null",
            b'{"pdus":{}}',
            b'{"pdus":null}',
            b'{"edus":"x"}',
            b'{"pdus":[{}',
            b'{"pdus":[{"a":tru}]}',
            b'{"pdus":' + b"[" * 200_000,
            b'{"pdus":[' + b'{"a":' * 200_000,
        ):
            with self.subTest(document[:40]):
                self.assertRaises(BadTransaction, parse_transaction, document)

    @given(st.binary() | st.text(st.sampled_from('{}[]":,pdus1')).map(str.encode))
    def test_reads_or_refuses_any_bytes(self, document: bytes) -> None:
        try:
            parse_transaction(document)
        except SynreplError:
            return


class Makes(TestCase):
    def test_canonical_json(self) -> None:
        pdus, edus = [{"a": 1}, {"b": "é"}], [TYPING]
        content = transaction_content(
            "a.example", 5, list(map(canonical_json, pdus)), list(map(canonical_json, edus))
        )
        document = {"origin": "a.example", "origin_server_ts": 5, "pdus": pdus, "edus": edus}
        self.assertEqual(content, canonical_json(document))
        self.assertEqual(list(map(json.loads, parse_transaction(content).pdus)), pdus)

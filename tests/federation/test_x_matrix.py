from __future__ import annotations

from typing import Any
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st
from signedjson.key import generate_signing_key, get_verify_key

from synrepl.core.errors import SynreplError
from synrepl.federation.x_matrix import (
    MAX_HEADER,
    BadRequestSignature,
    BadXMatrix,
    MissingXMatrix,
    WrongDestination,
    XMatrix,
    parse_x_matrix,
    sign_request,
    signed_request,
    verify_request,
)
from synrepl.rooms import ServerKey, canonical_json, keys_of
from tests.federation.recordings import SERVER, VERSIONS, keys, recording

HERE = "here.example"
SIGNATURE = "Zm9v/+bar"


def parsed(header: str) -> XMatrix:
    """A header of a request to ``HERE``."""
    return parse_x_matrix([header], HERE)


class ReadsHeaders(TestCase):
    WANTED = XMatrix("a.example:8448", HERE, "ed25519:a_1", SIGNATURE)

    def test_in_every_form(self) -> None:
        for header in (
            f'X-Matrix origin="a.example:8448",destination="{HERE}",key="ed25519:a_1",sig="{SIGNATURE}"',
            f"X-Matrix origin=a.example:8448,destination={HERE},key=ed25519:a_1,sig={SIGNATURE}",
            f'x-matrix   SIG="{SIGNATURE}" , Key=ed25519:a_1 ,\torigin = "a.example:8448",destination="{HERE}"',
            f'X-Matrix origin="a\\.example:8448",destination="{HERE}",key="ed25519:a_1",sig="{SIGNATURE}",x="\\"y,"',
            f'X-Matrix origin="a.example:8448",destination="{HERE}",key="ed25519:a_1",signature="{SIGNATURE}"',
            f'X-Matrix origin="a.example:8448",destination="{HERE}",key="ed25519:a_1",sig="{SIGNATURE}",signature="{SIGNATURE}",',
        ):
            with self.subTest(header):
                self.assertEqual(parsed(header), self.WANTED)

    def test_without_a_destination(self) -> None:
        self.assertIsNone(parsed("X-Matrix origin=a.example,key=ed25519:a,sig=b").destination)

    def test_of_a_server_with_an_ipv6_address(self) -> None:
        for origin in ('"[2001:db8::1]:8448"', "[2001:db8::1]:8448"):
            found = parsed(f"X-Matrix origin={origin},key=ed25519:a,sig=b")
            self.assertEqual(found.origin, "[2001:db8::1]:8448")

    def test_refuses_a_request_for_another_server(self) -> None:
        for destination in ("other.example", HERE.upper(), f"{HERE}:8448", ""):
            header = f'X-Matrix origin=a.example,destination="{destination}",key=ed25519:a,sig=b'
            self.assertRaises(WrongDestination, parsed, header)

    def test_refuses_a_request_without_a_signature(self) -> None:
        self.assertRaises(MissingXMatrix, parse_x_matrix, [], HERE)
        for header in ("", "Bearer x", "X-Matrix", "X-Matrixorigin=a"):
            self.assertRaises(MissingXMatrix, parsed, header)

    def test_refuses_several_headers(self) -> None:
        header = "X-Matrix origin=a.example,key=ed25519:a,sig=b"
        self.assertRaises(BadXMatrix, parse_x_matrix, [header, header], HERE)

    def test_refuses_odd_headers(self) -> None:
        good = "X-Matrix origin=a.example,key=ed25519:a,sig=b"
        for header in (
            "X-Matrix ",
            "X-Matrix origin=a.example,key=ed25519:a",
            "X-Matrix origin=a.example,sig=b",
            "X-Matrix key=ed25519:a,sig=b",
            f"{good},origin=b.example",
            f"{good},ORIGIN=a.example",
            f"{good},signature=c",
            f"{good} x=y",
            f'{good},x="y',
            f'{good},x="y"z',
            f"{good},x",
            f"{good},x=",
            f"{good},=y",
            f"{good};x=y",
            good.replace("a.example", "a..example"),
            good.replace("a.example", '""'),
            good.replace("a.example", "a.example:0"),
            good.replace("a.example", '"a b"'),
            good.replace("ed25519:a", "rsa:a"),
            good.replace("ed25519:a", "ed25519:"),
            good.replace("ed25519:a", "a"),
            good + "," + ",".join(f"x{number}=y" for number in range(30)),
            f'{good},x="{"y" * MAX_HEADER}"',
        ):
            with self.subTest(header[:100]):
                self.assertRaises(BadXMatrix, parsed, header)

    @given(st.text())
    def test_reads_or_refuses_any_text(self, text: str) -> None:
        try:
            parsed(f"X-Matrix {text}")
        except SynreplError:
            return

    @given(
        st.lists(st.sampled_from(['origin="', "a", "\\", '"', ",", "=", "sig", " "]), max_size=2000)
    )
    def test_takes_no_long_time_for_any_text(self, parts: list[str]) -> None:
        try:
            parsed("X-Matrix " + "".join(parts))
        except SynreplError:
            return


class SignsRequests(TestCase):
    def setUp(self) -> None:
        self.key = generate_signing_key("a_1")
        self.public = ServerKey(get_verify_key(self.key), 2_000)

    def signed(self, uri: str = "/x?a=b", content: bytes | None = None) -> XMatrix:
        return parsed(sign_request(self.key, "PUT", uri, "a.example", HERE, content))

    def verify(self, signature: XMatrix, **changes: Any) -> None:
        request = {"method": "PUT", "uri": "/x?a=b", "server_name": HERE, "content": None}
        request |= {"key": self.public, "now_ms": 1_000} | changes
        verify_request(signature, **request)

    def test_so_that_they_verify(self) -> None:
        self.verify(self.signed())
        self.verify(self.signed(content=b'{"a":1}'), content=b'{"a":1}')

    def test_as_canonical_json(self) -> None:
        content = {"b": ["é"], "a": {}}
        for body in (None, content):
            request: dict[str, Any] = {
                "method": "GET",
                "uri": "/é",
                "origin": "a",
                "destination": "b",
            }
            request |= {} if body is None else {"content": body}
            encoded = None if body is None else canonical_json(body)
            self.assertEqual(
                signed_request("GET", "/é", "a", "b", encoded), canonical_json(request)
            )

    def test_no_other_request_verifies(self) -> None:
        signature = self.signed(content=b'{"a":1}')
        right = {"content": b'{"a":1}'}
        self.verify(signature, **right)
        other = generate_signing_key("a_1")
        for changes in (
            {"method": "GET"},
            {"uri": "/x"},
            {"uri": "/x?a=c"},
            {"server_name": "other.example"},
            {"content": None},
            {"content": b'{"a":2}'},
            {"key": None},
            {"key": ServerKey(get_verify_key(other), 2_000)},
            {"now_ms": 2_001},
        ):
            with self.subTest(changes):
                self.assertRaises(BadRequestSignature, self.verify, signature, **right | changes)
        changed = (
            signature._replace(origin="b.example"),
            signature._replace(signature="AAAA"),
            signature._replace(signature="no base64!"),
            signature._replace(signature=""),
        )
        for each in changed:
            self.assertRaises(BadRequestSignature, self.verify, each, **right)

    def test_one_of_an_older_server_without_a_destination(self) -> None:
        self.verify(self.signed()._replace(destination=None))


class ARealServer(TestCase):
    def test_its_requests_verify(self) -> None:
        checked = 0
        for version in VERSIONS:
            own = keys_of(keys(version))[SERVER]
            for request in recording(version, "outbound/requests-to-the-resident"):
                fields = request["x_matrix"]
                header = "X-Matrix " + ",".join(f'{name}="{text}"' for name, text in fields.items())
                signature = parse_x_matrix([header], fields["destination"])
                content = None if request["body"] is None else canonical_json(request["body"])
                verify = {
                    "method": request["method"],
                    "uri": request["path"],
                    "server_name": fields["destination"],
                    "content": content,
                    "now_ms": 0,
                }
                verify_request(signature, own[signature.key_id], **verify)
                verify["uri"] += "&"
                self.assertRaises(
                    BadRequestSignature,
                    verify_request,
                    signature,
                    own[signature.key_id],
                    **verify,
                )
                checked += 1
        self.assertGreater(checked, 20)

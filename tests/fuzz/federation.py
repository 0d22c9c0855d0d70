"""Targets of the server-server protocol: what other servers answer, send and sign."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from typing import Any

from synrepl.core.errors import SynreplError
from synrepl.core.jsons import BadJson, decode
from synrepl.federation.answers import directory_answer, key_documents, server_error
from synrepl.federation.discovery import delegated_name
from synrepl.federation.event_scanner import BadJsonObject, index_object, read_elements
from synrepl.federation.published_keys import parse_key_document
from synrepl.federation.transactions import parse_transaction
from synrepl.federation.x_matrix import WrongDestination, parse_x_matrix
from tests.federation.recordings import FOLDER, VERSIONS, recording
from tests.fuzz.inputs import Wrong

_WANTED = ("state", "auth_chain", "event", "pdus")


def scan(data: bytes) -> None:
    """Any bytes as a large answer: the scanner finds what a parser finds, or refuses."""
    body = BytesIO(data)
    try:
        index = index_object(body, _WANTED)
    except BadJsonObject:
        if _is_small_object(data):
            raise Wrong("refused, and a parser takes it") from None
        return
    try:
        document = decode(data, "it")
    except BadJson:
        return  # deeper than the decoder's limit, or not UTF-8 in what nobody reads
    if isinstance(document, list):
        document = document[1]  # after a status
    for name in _WANTED:
        found: Any = None
        if name in index.arrays:
            found = [json.loads(each) for each in read_elements(body, index.arrays[name])]
        elif name in index.values:
            found = json.loads(index.values[name])
        if found != document.get(name):
            raise Wrong(f"another {name!r} than a parser finds")


def _is_small_object(data: bytes) -> bool:
    """Whether a parser takes it, and it is within every limit of the scanner."""
    try:
        document = decode(data, "it")
    except BadJson:
        return False
    return isinstance(document, dict) and len(document) < 100 and len(data) < 1000


def scan_seeds() -> Iterator[bytes]:
    """Recorded answers."""
    for version in VERSIONS:
        for name in ("send_join-partial", "state", "make_join", "event"):
            yield json.dumps(recording(version, f"inbound/{name}")["body"]).encode()


def read(data: bytes) -> None:
    """Any bytes as each of the small documents."""
    server_error(data)
    for parse in (parse_transaction, directory_answer, key_documents, parse_key_document):
        with suppress(SynreplError):
            parse(data)
    with suppress(SynreplError):
        delegated_name(data, "a.example")


def read_seeds() -> Iterator[bytes]:
    """Recorded transactions, refusals and queries."""
    for version in VERSIONS:
        for document in recording(version, "inbound/transactions"):
            yield json.dumps(document).encode()
        for refusal in recording(version, "inbound/refusals").values():
            yield json.dumps(refusal["body"]).encode()
    yield b'{"m.server": "b.example:443"}'
    yield b'{"room_id": "!a:b.example", "servers": ["b.example"]}'


def header(data: bytes) -> None:
    """Any text as the header of a request."""
    document = decode(data, "the input")
    text = document.get("header") if isinstance(document, dict) else None
    with suppress(WrongDestination):
        parse_x_matrix([text] if isinstance(text, str) else [], "localhost:1")


def header_seeds() -> Iterator[bytes]:
    """Recorded headers."""
    for path in sorted(FOLDER.glob("*/outbound/requests-to-the-resident.json")):
        for request in json.loads(path.read_text(encoding="utf-8")):
            fields = request["x_matrix"].items()
            text = "X-Matrix " + ",".join(f'{name}="{text}"' for name, text in fields)
            yield json.dumps({"header": text}).encode()

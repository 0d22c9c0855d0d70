"""The requests of the clients, and the decoding of their answers."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from synrepl.client.errors import (
    AppendRefused,
    AppendUnconfirmed,
    BadRows,
    ServerRefused,
    WaitExpired,
)
from synrepl.client.exchange import ClientCall
from synrepl.core import jsons
from synrepl.core.errors import SynreplError
from synrepl.core.names import idempotency_key
from synrepl.core.tokens import Token

#: Seconds that a client waits for an answer beyond the timeout of a wait for a position.
WAIT_MARGIN_S = 5.0

#: Size of the requests of ``append_batches``; a master writes about this much in one transaction.
BATCH_ROWS, BATCH_BYTES = 5_000, 2**20

_JSON_BODY = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Appended:
    """Committed facts, as an append returns them.

    :ivar stream: the stream
    :ivar writer: the writer that appended them; wait for its tokens
    :ivar ids: the stream IDs of the facts, in order; negative in a stream that counts down
    :ivar replayed: whether the idempotency key was used before, and this repeats the first answer
    :ivar attempts: the number of requests that it took
    """

    stream: str
    writer: str
    ids: tuple[int, ...]
    replayed: bool = False
    attempts: int = 1

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens of the facts, in order."""
        return tuple(map(abs, self.ids))

    @property
    def token(self) -> Token:
        """The largest token; a process at this position has all of the facts. 0 without facts."""
        return max(self.tokens, default=0)


def append_call(
    stream: str, body: bytes, key: str | None, facts: int | None = None
) -> ClientCall[Appended]:
    """The call that appends the facts of a body.

    :param key: idempotency key; None for a new one
    :param facts: the number of facts, which the answer has to match
    :raises BadKey: the key is not acceptable
    """
    used = secrets.token_urlsafe(16) if key is None else idempotency_key(key)

    def read(found: dict[str, Any], tries: int) -> Appended:
        ids = found["ids"]
        if not (isinstance(ids, list) and all(type(each) is int for each in ids)):
            raise TypeError
        if facts is not None and len(ids) != facts:
            raise ValueError
        writer, replayed = found["writer"], found.get("replayed") is True
        if not isinstance(writer, str):
            raise TypeError
        return Appended(stream, writer, tuple(ids), replayed, tries)

    return ClientCall(
        "POST",
        lambda left: f"/streams/{quote(stream, safe='')}/facts",
        read,
        body,
        {**_JSON_BODY, "Idempotency-Key": used},
        refused=lambda **facts: AppendRefused(stream=stream, **facts),
        unconfirmed=lambda reason: AppendUnconfirmed(stream=stream, key=used, reason=reason),
    )


def wait_call(stream: str, writer: str | None, token: Token, timeout_s: float) -> ClientCall[Token]:
    """The call that waits until a process has reached a token."""

    def path(left: float) -> str:
        seconds = min(timeout_s, max(left - WAIT_MARGIN_S, 0.0))
        query: dict[str, object] = {"token": token, "timeout": f"{seconds:.3f}"}
        if writer is not None:
            query["writer"] = writer
        return f"/streams/{quote(stream, safe='')}/wait?{urlencode(query)}"

    def refused(**facts: Any) -> SynreplError:
        if facts["code"] == "WaitTimedOut":
            return WaitExpired(stream=stream, message=facts["message"])
        return ServerRefused(**facts)

    return ClientCall("GET", path, lambda found, tries: int(found["position"]), refused=refused)


def get_call(path: str, *, also: int | None = None) -> ClientCall[dict[str, Any]]:
    """The call that gets a JSON object.

    :param also: a status besides 200 whose body is the result
    """
    accept = frozenset({200} if also is None else {200, also})
    return ClientCall("GET", lambda left: path, lambda found, tries: found, accept=accept)


def audit_call(keys: int) -> ClientCall[dict[str, Any]]:
    """The call that makes a process audit entries of its caches."""
    body = jsons.encode({"keys": keys})
    return ClientCall(
        "POST", lambda left: "/caches/audit", lambda found, tries: found, body, _JSON_BODY
    )


# -- bodies ---------------------------------------------------------------------------------


def encode_rows(stream: str, rows: Iterable[Sequence[Any]]) -> tuple[bytes, int]:
    """Encode a body in which each row is a fact; also returns the number of facts.

    :raises BadRows: a row is not a list, or has a value that is not JSON
    """
    encoded = [_encode_row(stream, row, f"rows[{number}]") for number, row in enumerate(rows)]
    return b'{"rows":[%b]}' % b",".join(encoded), len(encoded)


def encode_facts(stream: str, facts: Iterable[Iterable[Sequence[Any]]]) -> tuple[bytes, int]:
    """Encode a body of facts with any number of rows; also returns the number of facts.

    :raises BadRows: a row is not a list, or has a value that is not JSON
    """
    encoded = [
        b",".join(
            _encode_row(stream, row, f"facts[{number}][{place}]") for place, row in enumerate(rows)
        )
        for number, rows in enumerate(facts)
    ]
    return b'{"facts":[%b]}' % b",".join(b"[%b]" % rows for rows in encoded), len(encoded)


def encode_batches(
    stream: str, rows: Iterable[Sequence[Any]], batch_rows: int
) -> Iterable[tuple[bytes, int]]:
    """Encode bodies of at most ``batch_rows`` rows and about 1 MiB, each with its number of rows."""
    batch: list[bytes] = []
    size = 0
    for number, row in enumerate(rows):
        batch.append(_encode_row(stream, row, f"rows[{number}]"))
        size += len(batch[-1])
        if len(batch) >= batch_rows or size >= BATCH_BYTES:
            yield b'{"rows":[%b]}' % b",".join(batch), len(batch)
            batch, size = [], 0
    if batch:
        yield b'{"rows":[%b]}' % b",".join(batch), len(batch)


def _encode_row(stream: str, row: object, path: str) -> bytes:
    if not isinstance(row, (list, tuple)):
        reason = f"it is of type {type(row).__name__}"
        raise BadRows(stream=stream, path=path, reason=reason)
    try:
        return jsons.encode(row)
    except TypeError as error:
        raise BadRows(stream=stream, path=path, reason=str(error)) from None

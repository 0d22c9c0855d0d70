"""Transactions: events and EDUs that a server sends.

Source: https://spec.matrix.org/v1.16/server-server-api/#transactions
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from synrepl.core import jsons
from synrepl.core.errors import InputError

MAX_PDUS = 50
MAX_EDUS = 100

#: Maximum size of a transaction, in bytes: fifty of the largest events, and EDUs.
MAX_TRANSACTION = 12 * 2**20

#: Maximum size of an EDU, which the specification does not limit: that of an event.
MAX_EDU = 65_536


class BadTransaction(InputError):
    """this is no transaction: {reason}"""


class Edu(NamedTuple):
    """An EDU: something that is told to servers and not kept.

    :ivar edu_type: such as ``m.typing``
    """

    edu_type: str
    content: dict[str, Any]


class ReceivedTransaction(NamedTuple):
    """A transaction of another server.

    :ivar origin_server_ts: milliseconds since 1970; 0 where it does not say
    :ivar pdus: the JSON of events, as received
    :ivar edus: those that are EDUs
    :ivar ignored: number of PDUs and EDUs that are not
    :ivar bad_pdus: places of PDUs that are no objects, from 0
    """

    origin_server_ts: int
    pdus: tuple[bytes, ...]
    edus: tuple[Edu, ...]
    ignored: int
    bad_pdus: tuple[int, ...] = ()


class _Form(msgspec.Struct):
    pdus: list[msgspec.Raw] = []
    edus: list[msgspec.Raw] = []
    origin_server_ts: msgspec.Raw = msgspec.Raw(b"0")


_FORM = msgspec.json.Decoder(_Form)


def parse_transaction(body: bytes) -> ReceivedTransaction:
    """Read the body of a ``PUT /_matrix/federation/v1/send``.

    PDUs and EDUs that are no objects are counted and left out: they are no reason to refuse the others.

    :raises BadTransaction: it is no JSON object, has too many of them, or what should be an array is none
    """
    try:
        form = _FORM.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadTransaction(reason=str(error) or type(error).__name__) from None
    for name, values, most in (("PDUs", form.pdus, MAX_PDUS), ("EDUs", form.edus, MAX_EDUS)):
        if len(values) > most:
            raise BadTransaction(reason=f"it has {len(values)} {name}, more than {most}")
    pdus = tuple(bytes(each) for each in form.pdus if bytes(each).startswith(b"{"))
    bad = tuple(at for at, each in enumerate(form.pdus) if not bytes(each).startswith(b"{"))
    edus = tuple(each for each in map(_edu, form.edus) if each is not None)
    ignored = len(form.pdus) - len(pdus) + len(form.edus) - len(edus)
    return ReceivedTransaction(_time(form.origin_server_ts), pdus, edus, ignored, bad)


def _edu(raw: msgspec.Raw) -> Edu | None:
    data = bytes(raw)
    if len(data) > MAX_EDU:
        return None
    try:
        value = jsons.decode(data, "an EDU")
    except jsons.BadJson:
        return None
    if not isinstance(value, dict):
        return None
    kind, content = value.get("edu_type"), value.get("content")
    return Edu(kind, content) if isinstance(kind, str) and isinstance(content, dict) else None


def _time(raw: msgspec.Raw) -> int:
    try:
        value = jsons.decode(bytes(raw), "a time")
    except jsons.BadJson:
        return 0
    return value if type(value) is int and 0 <= value < 2**63 else 0


def transaction_content(
    origin: str, origin_server_ts: int, pdus: Sequence[bytes], edus: Sequence[bytes]
) -> bytes:
    """The canonical JSON of a transaction to send.

    :param pdus: canonical JSON of events
    :param edus: canonical JSON of EDUs
    """
    return b'{"edus":[%b],"origin":%b,"origin_server_ts":%d,"pdus":[%b]}' % (
        b",".join(edus),
        jsons.canonical(origin),
        origin_server_ts,
        b",".join(pdus),
    )

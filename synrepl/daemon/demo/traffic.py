"""The traffic that the demo appends: a recording played again and again, and some orders."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import count, cycle
from typing import NamedTuple

import msgspec

from synrepl.core import jsons
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec

#: The stream that the demo declares itself, and its columns.
ORDERS = "orders"
ORDER_COLUMNS = {"order_id": "text", "item": "text", "amount": "bigint", "note": "json?"}

#: Rows of one request, about.
REQUEST_ROWS = 100

#: One order for so many recorded facts.
_FACTS_PER_ORDER = 15

#: Facts of streams in memory come only in this first part of the rows: they are
#: lost when the master is restarted.
FLEETING_SHARE = 0.4

_ITEMS = ("anvil", "bellows", "crowbar", "drill", "file", "gauge", "hammer")


class RecordedFact(msgspec.Struct):
    """A line of the recording: the rows of one fact, each as its JSON."""

    stream: str
    rows: list[msgspec.Raw]


class Request(NamedTuple):
    """Facts that are appended together.

    :ivar number: counted from 0
    :ivar fleeting: the stream is kept in memory
    """

    number: int
    stream: str
    facts: Sequence[Sequence[bytes]]
    fleeting: bool

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(map(len, self.facts))

    @property
    def body(self) -> bytes:
        """As ``POST /streams/<stream>/facts`` wants it."""
        facts = b",".join([b"[%b]" % b",".join(rows) for rows in self.facts])
        return b'{"facts":[%b]}' % facts


class Traffic:
    """The same requests each time they are asked for, of the streams of the catalogue.

    :param rows: how many, give or take those of one fact
    """

    def __init__(self, catalogue: Catalogue, rows: int) -> None:
        self._catalogue = catalogue
        self._wanted = rows
        self._fleeting_rows = int(rows * FLEETING_SHARE)
        self._fleeting = {stream.name for stream in catalogue if stream.in_memory}
        self._recording = [fact for fact in _recording() if fact[0] in catalogue]

    def requests(self) -> Iterator[Request]:
        """All requests, in the order in which they are to be sent."""
        gathered: dict[str, list[Sequence[bytes]]] = {}
        waiting: Counter[str] = Counter()
        numbers = count()
        rows = 0

        def request(stream: str) -> Request:
            del waiting[stream]
            return Request(
                next(numbers), stream, gathered.pop(stream), self._catalogue[stream].in_memory
            )

        for stream, fact in self._facts():
            gathered.setdefault(stream, []).append(fact)
            waiting[stream] += len(fact)
            rows += len(fact)
            if waiting[stream] >= REQUEST_ROWS:
                yield request(stream)
            if rows >= self._fleeting_rows:
                yield from [request(name) for name in sorted(self._fleeting & gathered.keys())]
        yield from [request(name) for name in list(gathered)]

    def facts_of(self, request: Request) -> list[list[Row]]:
        """The rows of a request, decoded."""
        decode = RowCodec(self._catalogue[request.stream]).decode
        return [[decode(row) for row in rows] for rows in request.facts]

    def _facts(self) -> Iterator[tuple[str, Sequence[bytes]]]:
        rows = 0
        for played, (stream, fact) in enumerate(cycle(self._recording), 1):
            if rows >= self._wanted:
                return
            if stream not in self._fleeting or rows < self._fleeting_rows:
                yield stream, fact
                rows += len(fact)
            if played % _FACTS_PER_ORDER == 0:
                order = _order(played // _FACTS_PER_ORDER)
                yield ORDERS, order
                rows += len(order)


def _order(number: int) -> list[bytes]:
    """An order: a fact of one row per item."""
    return [
        jsons.encode(
            [f"o{number}", _ITEMS[(number + line) % len(_ITEMS)], line + 1, {"line": line + 1}]
        )
        for line in range(number % 3 + 1)
    ]


def _recording() -> list[tuple[str, Sequence[bytes]]]:
    packed = files("synrepl.daemon").joinpath("demo_data", "traffic.jsonl.gz").read_bytes()
    decode = msgspec.json.Decoder(RecordedFact).decode
    facts = [decode(line) for line in gzip.decompress(packed).splitlines()]
    return [(fact.stream, [bytes(row) for row in fact.rows]) for fact in facts]

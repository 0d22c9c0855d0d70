"""The traffic that the demo appends, and the threads that append it over HTTP.

A recording of a real Synapse is repeated until there are enough rows, with some orders in between.
"""

from __future__ import annotations

import gzip
import secrets
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import count, cycle
from threading import Condition, Thread
from typing import NamedTuple

import msgspec

from synrepl.client.client import Client
from synrepl.core import jsons
from synrepl.core.errors import Unavailable
from synrepl.core.tokens import Token
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec

#: The stream that the demo declares, and its columns.
ORDERS = "orders"
ORDER_COLUMNS = {"order_id": "text", "item": "text", "amount": "bigint", "note": "json?"}

#: Approximate number of rows per request.
REQUEST_ROWS = 100

#: Recorded facts per order.
_FACTS_PER_ORDER = 15

#: Facts of in-memory streams are appended only within this first share of the rows: the restart
#: of the master, which comes later, loses them.
IN_MEMORY_SHARE = 0.4

_ITEMS = ("anvil", "bellows", "crowbar", "drill", "file", "gauge", "hammer")

CONNECTIONS = 4

#: Seconds until a request is given up: much longer than a master takes to start.
REQUEST_TIMEOUT_S = 120.0

#: Seconds that one call of a client may take; between calls, the sender checks whether to go on.
CALL_TIMEOUT_S = 30.0


class NotAppended(Unavailable):
    """request {number} (stream {stream!r}) was not appended within {seconds:g} s: {reason}"""


class RecordedFact(msgspec.Struct):
    """One line of the recording: the rows of a fact, as JSON."""

    stream: str
    rows: list[msgspec.Raw]


class AppendRequest(NamedTuple):
    """Facts of one stream that are appended with one HTTP request.

    :ivar number: position in the traffic, from 0
    :ivar in_memory: whether the stream is kept in memory
    """

    number: int
    stream: str
    facts: Sequence[Sequence[bytes]]
    in_memory: bool

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(map(len, self.facts))

    @property
    def body(self) -> bytes:
        """The body for ``POST /streams/<stream>/facts``."""
        facts = b",".join([b"[%b]" % b",".join(rows) for rows in self.facts])
        return b'{"facts":[%b]}' % facts


class Traffic:
    """The requests of a run, for the streams of a catalogue; the same in each iteration.

    :param rows: the total number of rows, exceeded at most by those of one fact
    """

    def __init__(self, catalogue: Catalogue, rows: int) -> None:
        self._catalogue = catalogue
        self._total_rows = rows
        self._in_memory_until = int(rows * IN_MEMORY_SHARE)
        self._in_memory = {stream.name for stream in catalogue if stream.in_memory}
        self._recording = [fact for fact in _read_recording() if fact[0] in catalogue]

    def requests(self) -> Iterator[AppendRequest]:
        """All requests, in the order in which to send them."""
        pending: dict[str, list[Sequence[bytes]]] = {}
        pending_rows: Counter[str] = Counter()
        numbers = count()
        rows = 0

        def request(stream: str) -> AppendRequest:
            del pending_rows[stream]
            in_memory = self._catalogue[stream].in_memory
            return AppendRequest(next(numbers), stream, pending.pop(stream), in_memory)

        for stream, fact in self._facts():
            pending.setdefault(stream, []).append(fact)
            pending_rows[stream] += len(fact)
            rows += len(fact)
            if pending_rows[stream] >= REQUEST_ROWS:
                yield request(stream)
            if rows >= self._in_memory_until:
                yield from [request(name) for name in sorted(self._in_memory & pending.keys())]
        yield from [request(name) for name in list(pending)]

    def decode(self, request: AppendRequest) -> list[list[Row]]:
        """The facts of a request, each as its decoded rows."""
        decode = RowCodec(self._catalogue[request.stream]).decode
        return [[decode(row) for row in rows] for rows in request.facts]

    def _facts(self) -> Iterator[tuple[str, Sequence[bytes]]]:
        rows = 0
        for number, (stream, fact) in enumerate(cycle(self._recording), 1):
            if rows >= self._total_rows:
                return
            if stream not in self._in_memory or rows < self._in_memory_until:
                yield stream, fact
                rows += len(fact)
            if number % _FACTS_PER_ORDER == 0:
                order = _order(number // _FACTS_PER_ORDER)
                yield ORDERS, order
                rows += len(order)


def _order(number: int) -> list[bytes]:
    """The fact of an order: one row per item."""
    return [
        jsons.encode(
            [f"o{number}", _ITEMS[(number + line) % len(_ITEMS)], line + 1, {"line": line + 1}]
        )
        for line in range(number % 3 + 1)
    ]


def _read_recording() -> list[tuple[str, Sequence[bytes]]]:
    packed = files("synrepl.cli.demo").joinpath("data", "traffic.jsonl.gz").read_bytes()
    decode = msgspec.json.Decoder(RecordedFact).decode
    facts = [decode(line) for line in gzip.decompress(packed).splitlines()]
    return [(fact.stream, [bytes(row) for row in fact.rows]) for fact in facts]


@dataclass(slots=True)
class Acknowledged:
    """The appends that the writers have acknowledged.

    :ivar ids: stream IDs of the facts of a request, by request number
    :ivar writers: the writer that appended it, by request number
    :ivar rows: number of rows, by stream
    :ivar facts: number of facts, by stream
    :ivar last_tokens: the largest token, by stream
    :ivar resent: requests that were sent more than once
    :ivar replayed: resent requests whose first attempt had been appended
    """

    ids: dict[int, array[int]] = field(default_factory=dict)
    writers: dict[int, str] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    facts: Counter[str] = field(default_factory=Counter)
    last_tokens: dict[str, Token] = field(default_factory=dict)
    resent: int = 0
    replayed: int = 0


class Senders:
    """Threads that send requests in order, up to a row limit that the caller raises.

    :param client_for: the client that a request is sent with, the same for each attempt
    """

    def __init__(
        self, client_for: Callable[[AppendRequest], Client], requests: Iterator[AppendRequest]
    ) -> None:
        self.acknowledged = Acknowledged()
        self._client_for = client_for
        self._requests = requests
        self._key_prefix = secrets.token_hex(8)
        self._changed = Condition()
        self._limit: int | None = 0
        self._taken_rows = 0
        self._running = 0
        self._stopped = False
        self._failure: Exception | None = None

    def start(self) -> None:
        """Start the threads, which do not keep the process from exiting."""
        self._running = CONNECTIONS
        for _ in range(CONNECTIONS):
            Thread(target=self._send_all, daemon=True).start()

    def allow(self, rows: int | None) -> None:
        """Raise the limit: send requests until this many rows are taken; None for all."""
        with self._changed:
            self._limit = rows
            self._changed.notify_all()

    def finish(self) -> None:
        """Take no new requests, and complete those in progress."""
        with self._changed:
            self._requests = iter(())
        self.allow(None)

    def stop(self) -> None:
        """Stop sending, without completing requests in progress."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @property
    def rows(self) -> int:
        """The number of rows appended so far.

        :raises SynreplError: a request failed for good
        """
        return self.rows_by_stream.total()

    @property
    def rows_by_stream(self) -> Counter[str]:
        """The number of rows appended so far, by stream.

        :raises SynreplError: a request failed for good
        """
        with self._changed:
            self._check()
            return Counter(self.acknowledged.rows)

    @property
    def done(self) -> bool:
        """Whether all requests are appended.

        :raises SynreplError: a request failed for good
        """
        with self._changed:
            self._check()
            return not self._running

    def check(self) -> None:
        """Check that no request has failed.

        :raises SynreplError: a request failed for good
        """
        with self._changed:
            self._check()

    def last_tokens(self) -> dict[str, Token]:
        """The largest token acknowledged so far, by stream."""
        with self._changed:
            return dict(self.acknowledged.last_tokens)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _send_all(self) -> None:
        try:
            while (request := self._next()) is not None:
                self._send(request)
        except Exception as error:  # reported to the caller by _check
            with self._changed:
                self._failure = self._failure or error
            self.stop()
        finally:
            with self._changed:
                self._running -= 1

    def _next(self) -> AppendRequest | None:
        with self._changed:
            while self._limit is not None and self._taken_rows >= self._limit and not self._stopped:
                self._changed.wait()
            if self._stopped:
                return None
            request = next(self._requests, None)
            if request is not None:
                self._taken_rows += request.rows
            return request

    def _send(self, request: AppendRequest) -> None:
        client, facts = self._client_for(request), len(request.facts)
        key = f"{self._key_prefix}-{request.number}"
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        attempts = 0
        while True:
            attempts += 1
            try:
                appended = client.append_body(
                    request.stream, request.body, facts, key=key, timeout_s=CALL_TIMEOUT_S
                )
                break
            except Unavailable as error:
                if self._stopped or time.monotonic() > deadline:
                    raise NotAppended(
                        number=request.number,
                        stream=request.stream,
                        seconds=REQUEST_TIMEOUT_S,
                        reason=error,
                    ) from None
        with self._changed:
            to = self.acknowledged
            to.ids[request.number] = array("q", appended.ids)
            to.writers[request.number] = appended.writer
            to.rows[request.stream] += request.rows
            to.facts[request.stream] += len(appended.ids)
            last = to.last_tokens.get(request.stream, 0)
            to.last_tokens[request.stream] = max(appended.token, last)
            to.resent += attempts > 1 or appended.attempts > 1
            to.replayed += appended.replayed

"""What was appended, what is in the tables and what each worker applied, stream by stream."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

from synrepl.core.tokens import MAX_TOKEN, Range, Token
from synrepl.daemon.demo.comparison import Compared, Comparison
from synrepl.daemon.demo.senders import Acknowledged
from synrepl.daemon.demo.site import Worker
from synrepl.daemon.demo.tally import Entry, TallyTable, entry
from synrepl.daemon.demo.traffic import Request, Traffic
from synrepl.services.following.source import LINEAR
from synrepl.storage.database import Transaction
from synrepl.storage.facts import FactTable
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.rows import RowCodec

#: Facts read at a time.
_PAGE_ROWS = 5_000


class Verified(NamedTuple):
    """One stream.

    :ivar facts: acknowledged by their writers; ``rows`` likewise
    :ivar stored: the table, held against what was acknowledged; None for a stream in memory
    :ivar workers: what each applied, held against the table (or, without one,
        against what was acknowledged); None for a worker that does not know the stream
    """

    facts: int
    rows: int
    stored: Compared | None
    workers: Mapping[str, Compared | None]


class Verification:
    """Compares everything with everything. To be made once all is appended.

    :param acknowledged: the answers to the first requests of ``traffic``, or to all
    :param lost: stream and token of facts that were acknowledged and lost by a failover
    """

    def __init__(
        self,
        traffic: Traffic,
        acknowledged: Acknowledged,
        workers: Sequence[Worker],
        lost: Container[tuple[str, Token]] = frozenset(),
    ) -> None:
        self._lost = lost
        self._traffic = traffic
        self._acknowledged = acknowledged
        self._workers = workers
        self._requests: dict[str, list[Request]] = {}
        answered = takewhile(lambda each: each.number in acknowledged.ids, traffic.requests())
        for request in answered:
            self._requests.setdefault(request.stream, []).append(request)

    @property
    def streams(self) -> list[str]:
        """The names of the streams that were appended to."""
        return sorted(self._requests)

    def verify(self, txn: Transaction, stream: Stream) -> Verified:
        """Compare one stream; best in a transaction that sees one snapshot."""
        name = stream.name
        table: Comparison | None = None
        facts: Iterable[Fact] = self._sent(stream)
        if not stream.in_memory:
            table = Comparison(_entries(_stored(txn, stream)))
            for fact in facts:
                table.expect(entry(fact.token, fact.writer, fact.rows))
            facts = _stored(txn, stream)
        applied = {
            worker.name: _Applied(txn, stream, worker)
            for worker in self._workers
            if worker.generation in stream.generations
        }
        for fact in facts:
            for each in applied.values():
                each.expect(fact)
        return Verified(
            self._acknowledged.facts[name],
            self._acknowledged.rows[name],
            None if table is None else table.finish(),
            {
                worker.name: applied[worker.name].finish() if worker.name in applied else None
                for worker in self._workers
            },
        )

    def _sent(self, stream: Stream) -> list[Fact]:
        """What has been acknowledged, by token."""
        writers = self._acknowledged.writers
        facts = [
            Fact(stream.stream_id(stream_id), writers[request.number], tuple(rows))
            for request in self._requests[stream.name]
            for stream_id, rows in zip(
                self._acknowledged.ids[request.number],
                self._traffic.facts_of(request),
                strict=True,
            )
        ]
        kept = (fact for fact in facts if (stream.name, fact.token) not in self._lost)
        return sorted(kept, key=attrgetter("token"))


class _Applied:
    """What a worker applied, held against facts as peers of its generation see them.

    Older ones lack columns, which then have their defaults.
    """

    def __init__(self, txn: Transaction, stream: Stream, worker: Worker) -> None:
        codec = RowCodec(stream)
        self._encode = codec.encoder(worker.generation)
        self._decode = codec.decode
        self._writer = LINEAR if worker.is_linear else None
        self._comparison = Comparison(_tallied(txn, stream, worker.name))

    def expect(self, fact: Fact) -> None:
        """A fact should be there: as the connection brings it, or whole, from the database."""
        writer = fact.writer if self._writer is None else self._writer
        rows = [self._decode(self._encode(row)) for row in fact.rows]
        whole = entry(fact.token, writer, fact.rows)
        self._comparison.expect(entry(fact.token, writer, rows), whole)

    def finish(self) -> Compared:
        """That was all."""
        return self._comparison.finish()


def _stored(txn: Transaction, stream: Stream) -> Iterator[Fact]:
    """What is in the stream's table, by token."""
    table = FactTable(stream)
    after: Token = 0
    while after < MAX_TOKEN:
        page = table.page(txn, Range(after, MAX_TOKEN), None, _PAGE_ROWS)
        yield from page.facts
        after = page.upto


def _entries(facts: Iterable[Fact]) -> Iterator[Entry]:
    return (entry(fact.token, fact.writer, fact.rows) for fact in facts)


def _tallied(txn: Transaction, stream: Stream, worker: str) -> Iterator[Entry]:
    """What a worker wrote down, by token."""
    table = TallyTable(worker)
    after: tuple[Token, str] = (0, "")
    while page := table.page(txn, stream.name, after, _PAGE_ROWS):
        yield from page
        after = page[-1].token, page[-1].writer

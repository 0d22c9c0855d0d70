"""The comparison, stream by stream: what was appended, what is stored, what each worker applied."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import groupby, takewhile
from operator import attrgetter
from typing import NamedTuple

from synrepl.cli.demo.deployment import WorkerSpec
from synrepl.cli.demo.recorder import AppliedTable, FactDigest, digest_fact
from synrepl.cli.demo.traffic import Acknowledged, AppendRequest, Traffic
from synrepl.core.tokens import MAX_TOKEN, Range, Token
from synrepl.services.sources import LINEAR
from synrepl.storage.database import Transaction
from synrepl.storage.postgres.facts import FactTable
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.rows import RowCodec

#: Runs of mismatches that are listed; further ones are only counted.
MAX_RUNS = 100

#: Facts read from a table at a time.
_PAGE_FACTS = 5_000


class Mismatch(StrEnum):
    """What can be wrong with a fact; completes the sentence "the fact is …"."""

    MISSING = "missing"
    UNEXPECTED = "not expected"
    DUPLICATED = "there more than once"
    DIFFERENT = "there with other rows"


class MismatchRun(NamedTuple):
    """Consecutive facts with the same mismatch.

    :ivar first: the token of the first fact
    :ivar last: the token of the last fact
    :ivar facts: the number of facts
    """

    mismatch: Mismatch
    first: Token
    last: Token
    facts: int

    def __str__(self) -> str:
        if self.facts == 1:
            return f"the fact at token {self.first} is {self.mismatch}"
        return f"{self.facts} facts at tokens {self.first} to {self.last} are {self.mismatch}"


class ComparisonResult(NamedTuple):
    """The result of a :class:`Comparison`.

    :ivar facts: facts found, a duplicated one counted once
    :ivar rows: rows of the facts found
    :ivar wrong: facts with a mismatch
    :ivar runs: the first :data:`MAX_RUNS` runs of mismatches
    """

    facts: int
    rows: int
    wrong: int
    runs: list[MismatchRun]


class Comparison:
    """Compares found facts with expected facts, both sorted by token, in constant memory.

    :param found: the facts found
    """

    def __init__(self, found: Iterable[FactDigest]) -> None:
        self._found = _group_by_token(found)
        self._next = next(self._found, None)
        self._facts = self._rows = self._wrong = 0
        self._runs: list[MismatchRun] = []
        self._previous: Mismatch | None = None

    def expect(self, expected: FactDigest, *others: FactDigest) -> None:
        """Compare with the next expected fact.

        :param others: other forms of the same fact, accepted as well
        """
        while self._next is not None and self._next[0] < expected.token:
            self._consume(*self._next, Mismatch.UNEXPECTED)
        if self._next is None or self._next[0] > expected.token:
            self._note(expected.token, Mismatch.MISSING)
        elif len(self._next[1]) > 1:
            self._consume(*self._next, Mismatch.DUPLICATED)
        else:
            is_equal = self._next[1][0] in (expected, *others)
            self._consume(*self._next, None if is_equal else Mismatch.DIFFERENT)

    def finish(self) -> ComparisonResult:
        """End the comparison: all other found facts are unexpected."""
        while self._next is not None:
            self._consume(*self._next, Mismatch.UNEXPECTED)
        return ComparisonResult(self._facts, self._rows, self._wrong, self._runs)

    def _consume(self, token: Token, found: list[FactDigest], mismatch: Mismatch | None) -> None:
        self._facts += 1
        self._rows += found[0].rows
        self._note(token, mismatch)
        self._next = next(self._found, None)

    def _note(self, token: Token, mismatch: Mismatch | None) -> None:
        runs = self._runs
        if mismatch is not None:
            self._wrong += 1
            if mismatch is self._previous:
                runs[-1] = runs[-1]._replace(last=token, facts=runs[-1].facts + 1)
            elif len(runs) < MAX_RUNS:
                runs.append(MismatchRun(mismatch, token, token, 1))
            else:
                mismatch = None
        self._previous = mismatch


class StreamVerification(NamedTuple):
    """The comparisons of one stream.

    :ivar facts: number of facts acknowledged
    :ivar rows: number of rows acknowledged
    :ivar stored: its table, compared with what was acknowledged; None for an in-memory stream
    :ivar workers: what each worker applied, compared with the table (for an in-memory stream, with
        what was acknowledged); None for a worker whose protocol lacks the stream
    """

    facts: int
    rows: int
    stored: ComparisonResult | None
    workers: Mapping[str, ComparisonResult | None]


class Verification:
    """Compares all streams; create it once everything is appended.

    :param acknowledged: the responses to the first requests of ``traffic``, or to all
    :param lost: (stream, token) of acknowledged facts that a database failover has lost
    """

    def __init__(
        self,
        traffic: Traffic,
        acknowledged: Acknowledged,
        workers: Sequence[WorkerSpec],
        lost: Container[tuple[str, Token]] = frozenset(),
    ) -> None:
        self._lost = lost
        self._traffic = traffic
        self._acknowledged = acknowledged
        self._workers = workers
        self._requests: dict[str, list[AppendRequest]] = {}
        for request in takewhile(lambda each: each.number in acknowledged.ids, traffic.requests()):
            self._requests.setdefault(request.stream, []).append(request)

    @property
    def streams(self) -> list[str]:
        """The names of the streams that were appended to."""
        return sorted(self._requests)

    def verify(self, txn: Transaction, stream: Stream) -> StreamVerification:
        """Compare one stream; the transaction should see one snapshot."""
        stored: Comparison | None = None
        facts: Iterable[Fact] = self._acknowledged_facts(stream)
        if not stream.in_memory:
            stored = Comparison(map(_digest, _stored_facts(txn, stream)))
            for fact in facts:
                stored.expect(_digest(fact))
            facts = _stored_facts(txn, stream)
        applied = {
            worker.name: _AppliedComparison(txn, stream, worker)
            for worker in self._workers
            if worker.generation in stream.generations
        }
        for fact in facts:
            for comparison in applied.values():
                comparison.expect(fact)
        return StreamVerification(
            self._acknowledged.facts[stream.name],
            self._acknowledged.rows[stream.name],
            None if stored is None else stored.finish(),
            {
                worker.name: applied[worker.name].finish() if worker.name in applied else None
                for worker in self._workers
            },
        )

    def _acknowledged_facts(self, stream: Stream) -> list[Fact]:
        """The acknowledged facts that were not lost, by token."""
        facts = []
        for request in self._requests[stream.name]:
            writer = self._acknowledged.writers[request.number]
            ids = self._acknowledged.ids[request.number]
            for stream_id, rows in zip(ids, self._traffic.decode(request), strict=True):
                token = stream.stream_id(stream_id)
                if (stream.name, token) not in self._lost:
                    facts.append(Fact(token, writer, tuple(rows)))
        return sorted(facts, key=attrgetter("token"))


class _AppliedComparison:
    """Compares what a worker applied with facts as its protocol represents them.

    Older generations lack columns; those have their defaults then.
    """

    def __init__(self, txn: Transaction, stream: Stream, worker: WorkerSpec) -> None:
        codec = RowCodec(stream)
        self._encode = codec.encoder(worker.generation)
        self._decode = codec.decode
        self._writer = LINEAR if worker.is_linear else None
        self._comparison = Comparison(_applied_facts(txn, stream, worker.name))
        self.finish = self._comparison.finish

    def expect(self, fact: Fact) -> None:
        """Compare with the next fact: as the connection brings it, or whole, from the database."""
        writer = fact.writer if self._writer is None else self._writer
        rows = [self._decode(self._encode(row)) for row in fact.rows]
        whole = digest_fact(fact.token, writer, fact.rows)
        self._comparison.expect(digest_fact(fact.token, writer, rows), whole)


def _digest(fact: Fact) -> FactDigest:
    return digest_fact(fact.token, fact.writer, fact.rows)


def _stored_facts(txn: Transaction, stream: Stream) -> Iterator[Fact]:
    """The facts in the stream's table, by token."""
    table = FactTable(stream)
    after: Token = 0
    while after < MAX_TOKEN:
        page = table.page(txn, Range(after, MAX_TOKEN), None, _PAGE_FACTS)
        yield from page.facts
        after = page.upto


def _applied_facts(txn: Transaction, stream: Stream, worker: str) -> Iterator[FactDigest]:
    """The facts that a worker has recorded, by token."""
    table = AppliedTable(worker)
    after: tuple[Token, str] = (0, "")
    while page := table.page(txn, stream.name, after, _PAGE_FACTS):
        yield from page
        after = page[-1].token, page[-1].writer


def _group_by_token(facts: Iterable[FactDigest]) -> Iterator[tuple[Token, list[FactDigest]]]:
    for token, group in groupby(facts, key=attrgetter("token")):
        yield token, list(group)

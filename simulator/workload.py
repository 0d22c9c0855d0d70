"""The work of writers: append, reserve and write, and plain SQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Protocol

from simulator.clock import Process
from simulator.interfaces import LINE_LIMIT, ReservedTokens, WriterService
from simulator.transcript import Transcript
from simulator.truth import Truth, Violations
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Token
from synrepl.storage.store import AppendResult
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.declared import declare
from synrepl.streams.definition import UNTAGGED, Fact, Stream
from synrepl.streams.row import Row
from synrepl.streams.synapse.caches import CACHES

Facts = Sequence[Sequence[Row]]

JOBS = declare("jobs", {"number": "bigint", "note": "text?"})
_MARKS = declare("marks", {"number": "bigint", "note": "text?"})
MARKS = Stream(_MARKS.name, _MARKS.kinds, counts_down=True)

CATALOGUE = Catalogue([JOBS, MARKS, CACHES])

#: A note that makes a line too long for all followers.
LONG_NOTE = "x" * LINE_LIMIT


def too_long(stream: str, fact: Fact) -> bool:
    """Whether a fact has a row that is too long for a line."""
    return any(getattr(row, "note", None) == LONG_NOTE for row in fact.rows)


class RolledBack(Exception):
    """An exception of a user's code while it holds reserved tokens."""


class AppendingActor(Protocol):
    """An actor with a writer."""

    name: str
    process: Process | None
    ready: bool

    @property
    def writer(self) -> WriterService | None: ...


class SqlTransaction(Protocol):
    """A transaction of plain SQL."""

    async def append(self, stream: Stream, rows: Sequence[Row]) -> Token:
        """Append one fact, inside the transaction."""

    async def commit(self) -> None: ...

    async def roll_back(self) -> None: ...


class Workload:
    """Generates facts, has them written, and checks the results.

    :param begin_sql: begins a transaction of plain SQL
    :param tokens_released: called when a writer has released tokens, whatever the database knows
    """

    def __init__(
        self,
        random: Random,
        transcript: Transcript,
        violations: Violations,
        truth: Truth,
        begin_sql: Callable[[], Awaitable[SqlTransaction]],
        tokens_released: Callable[[Stream, Sequence[Token]], object],
    ) -> None:
        self._random = random
        self._transcript = transcript
        self._violations = violations
        self._truth = truth
        self._begin_sql = begin_sql
        self._tokens_released = tokens_released
        self._number = 0
        self._retries: list[tuple[Stream, Facts, str]] = []
        self.answers = 0

    def append(self, actor: AppendingActor) -> None:
        """Append some facts, perhaps with an idempotency key; or retry a failed append with its key, on any writer."""
        writer, process = actor.writer, actor.process
        if writer is None or process is None or not actor.ready:
            return
        stream, key = self._stream(), None
        facts: Facts = self._facts(stream)
        if self._retries and self._random.random() < 0.5:
            draft = self._random.choice(self._retries)
            self._retries.remove(draft)
            stream, facts, key = draft
        elif self._random.random() < 0.4:
            key = f"key{self._number}"
        process.spawn("append", self._append(actor.name, writer, stream, facts, key))

    def jobs(self) -> Sequence[Row]:
        """The rows of a new fact of ``jobs``."""
        return self._facts(JOBS)[0]

    def reserve(self, actor: AppendingActor) -> None:
        """Reserve tokens, and write some or none of them later."""
        writer, process = actor.writer, actor.process
        if writer is not None and process is not None and actor.ready:
            process.spawn("reserve", self._reserve(actor.name, writer, process))

    def append_sql(self, process: Process) -> None:
        """Run a slow transaction of plain SQL."""
        process.spawn("plain SQL", self._sql(process))

    async def _append(
        self, name: str, writer: WriterService, stream: Stream, facts: Facts, key: str | None
    ) -> None:
        try:
            written = await writer.append(stream, facts, key)
        except SynreplError as error:
            self._log(name, "append of {facts} to {stream} failed: {error}",
                      facts=_numbers(facts), stream=stream.name, error=error)  # fmt: skip
            if key is not None:
                self._retries.append((stream, facts, key))
            return
        self.answers += 1
        by = "" if written.writer == name else f" by {written.writer}"
        self._log(name, "appended {facts} to {stream} at {tokens}{by}{key}", facts=_numbers(facts),
                  stream=stream.name, tokens=list(written.tokens), by=by,
                  key=f" ({key})" if key else "")  # fmt: skip
        self._check(name, stream, written.tokens, facts)
        self._check_writer(name, stream, written)
        if key is not None and self._random.random() < 0.2:  # as if the answer were lost
            self._retries.append((stream, facts, key))

    async def _reserve(self, name: str, writer: WriterService, process: Process) -> None:
        stream = self._stream()
        facts = self._facts(stream)
        spare = self._random.choice((0, 0, 1, 2))
        try:
            async with await writer.reserve(stream, len(facts) + spare) as reservation:
                self._log(name, "reserved {tokens} of {stream}", tokens=list(reservation.tokens),
                          stream=stream.name)  # fmt: skip
                try:
                    await self._write_reserved(name, stream, reservation, facts, process)
                finally:  # the writer knows that it writes no more
                    self._tokens_released(stream, reservation.tokens)
        except (SynreplError, RolledBack) as error:
            self._log(name, "gave a reservation of {stream} up: {error}",
                      stream=stream.name, error=repr(error))  # fmt: skip

    async def _write_reserved(
        self, name: str, stream: Stream, reservation: ReservedTokens, facts: Facts, process: Process
    ) -> None:
        await process.sleep(self._random.random() ** 2 * 2)
        if self._random.random() < 0.2:
            raise RolledBack()
        await reservation.write(facts)
        tokens = reservation.tokens[: len(facts)]
        self._log(name, "wrote {facts} to {stream} at {tokens}", facts=_numbers(facts),
                  stream=stream.name, tokens=list(tokens))  # fmt: skip
        self._check(name, stream, tokens, facts)
        await process.sleep(self._random.random() ** 2)

    async def _sql(self, process: Process) -> None:
        try:
            txn = await self._begin_sql()
            for _ in range(self._random.randint(1, 3)):
                stream = self._stream()
                rows = self._facts(stream)[0]
                token = await txn.append(stream, rows)
                self._log("plain SQL", "took {token} of {stream}", token=token, stream=stream.name)
                await process.sleep(self._random.random() ** 3 * 3)
            if self._random.random() < 0.3:
                await txn.roll_back()
            else:
                await txn.commit()
        except SynreplError as error:
            self._log("plain SQL", "failed: {error}", error=error)

    def _check(self, name: str, stream: Stream, tokens: Sequence[Token], facts: Facts) -> None:
        for token, rows in zip(tokens, facts, strict=True):
            found = self._truth.between(stream.name, "", token - 1, token)
            is_lost = (stream.name, token) in self._truth.lost
            if not is_lost and [fact.rows for fact in found] != [tuple(rows)]:
                self._violations.add(
                    "R1", "{name} got the answer that {rows} are at {token} of {stream}, there is {found}",
                    name=name, rows=rows, token=token, stream=stream.name, found=found,
                )  # fmt: skip

    def _check_writer(self, name: str, stream: Stream, written: AppendResult) -> None:
        """Check the writer in the result, which callers use to wait for the tokens."""
        for token in written.tokens:
            for fact in self._truth.between(stream.name, "", token - 1, token):
                if fact.writer != written.writer:
                    self._violations.add(
                        "ONCE", "{name} got the answer that {writer} wrote {token} of {stream}, it was {by}",
                        name=name, writer=written.writer, token=token, stream=stream.name,
                        by=fact.writer,
                    )  # fmt: skip

    def _stream(self) -> Stream:
        return JOBS if self._random.random() < 0.75 else MARKS

    def _facts(self, stream: Stream) -> list[tuple[Row, ...]]:
        """One to three facts, mostly of one row; every row has a unique number."""
        return [
            tuple(self._row(stream) for _ in range(self._random.choice((1, 1, 1, 2, 3))))
            for _ in range(self._random.choice((1, 1, 2, 3)))
        ]

    def _row(self, stream: Stream) -> Row:
        self._number += 1
        note = self._random.choice((None, "short", "nöte", None, "a \\ b"))
        if self._random.random() < 0.05:
            note = LONG_NOTE
        return stream.kinds[UNTAGGED](self._number, note)

    def _log(self, who: str, words: str, **facts: object) -> None:
        self._transcript.add(who, words, **facts)


def _numbers(facts: Facts) -> list[list[int]]:
    return [[getattr(row, "number", 0) for row in rows] for rows in facts]

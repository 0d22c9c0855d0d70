"""Drafts of several callers, appended to one stream in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Token
from synrepl.services.writing.commits import CommitPipeline
from synrepl.services.writing.lease_term import Facts
from synrepl.services.writing.outcome import FactRows, WriteOutcome, rows_key
from synrepl.storage.database import CommitUnknown
from synrepl.storage.store import AppendResult, Draft, TransactionResult, WriterLease
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row


class AppendGroup:
    """Drafts of one stream; the answer is that of each, in order.

    Implements :class:`~.lease_term.Write`.
    """

    def __init__(self, commits: CommitPipeline, stream: Stream, drafts: Sequence[Draft]) -> None:
        self.streams = [stream]
        self._commits = commits
        self._stream = stream
        self._drafts = drafts

    @property
    def certain(self) -> FactRows:
        """The facts without a key; others may have been there before."""
        return {self._stream.name: self._plain}

    @property
    def possible(self) -> FactRows:
        """All facts."""
        return {self._stream.name: [rows for draft in self._drafts for rows in draft.facts]}

    async def commit(
        self, lease: WriterLease, begin: Callable[[], Mapping[str, Token]]
    ) -> TransactionResult[Sequence[AppendResult]]:
        """Append them."""
        answers = await lease.append(self._stream, self._drafts, begin()[self._stream.name])
        facts = [
            Fact(token, lease.writer, tuple(rows))
            for draft, written in zip(self._drafts, answers, strict=True)
            if not written.replayed
            for token, rows in zip(written.tokens, draft.facts, strict=True)
        ]
        return TransactionResult(answers, {self._stream.name: facts})

    async def resolve(
        self, outcome: WriteOutcome, found: Facts, error: CommitUnknown
    ) -> Sequence[AppendResult]:
        """The tokens of drafts with a key come of asking again, those of the others of what was found.

        That they were committed is proved by their number; *which* of the found
        facts they are, only when no other has the same rows.
        """
        if self._plain and outcome is not WriteOutcome.COMMITTED:
            raise error
        try:
            answers = {
                n: await self._again(draft)
                for n, draft in enumerate(self._drafts)
                if draft.key is not None
            }
        except SynreplError:  # that is no answer to what was asked first
            raise error from None
        theirs = {token for written in answers.values() for token in written.tokens}
        wanted = [rows_key(rows) for rows in self._plain]
        left = [
            (fact.token, rows_key(fact.rows))
            for fact in found[self._stream.name]
            if fact.token not in theirs
        ]
        mine = [(token, rows) for token, rows in left if rows in wanted]
        if [rows for _, rows in mine] != wanted:
            raise error
        tokens = (token for token, _ in mine)
        for n, draft in enumerate(self._drafts):
            if n not in answers:
                answers[n] = AppendResult([next(tokens) for _ in draft.facts], self._commits.writer)
        return [answers[n] for n in range(len(self._drafts))]

    @property
    def _plain(self) -> list[Sequence[Row]]:
        return [rows for draft in self._drafts if draft.key is None for rows in draft.facts]

    async def _again(self, draft: Draft) -> AppendResult:
        """Append a draft with a key: if it was committed, that is its answer."""
        (written,) = await self._commits.run(AppendGroup(self._commits, self._stream, [draft]))
        return written

"""Checks announced positions, commits and recorded positions (R1, R7, R8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from simulator.truth import ALL, Truth, Unsettled, Violations
from synrepl.core.tokens import Token
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.synapse.caches import CachesRow


class AnnouncementListener(Protocol):
    """Receives the advances of positions; the product's publisher implements it."""

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """A writer's position moved past these facts."""

    def linear_advanced(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """The linear position moved past these facts; None: read them from the table."""


class PositionChecker:
    """Wraps an announcement listener and checks each advance of a position.

    One per process.

    :param unsettled: returns the smallest unsettled token from the database
    """

    def __init__(
        self,
        violations: Violations,
        truth: Truth,
        unsettled: Unsettled,
        listener: AnnouncementListener,
    ) -> None:
        self._violations = violations
        self._truth = truth
        self._unsettled = unsettled
        self._listener = listener
        self._at: dict[tuple[str, str], Token] = {}
        self._started = False

    def started(self, positions: Mapping[tuple[str, str], Token]) -> None:
        """The process is at these positions, and announces from now on."""
        self._started = True
        for (stream, writer), position in positions.items():
            self._check_settled(stream, writer, position)
            self._at[stream, writer] = position
            self._truth.publish(stream, writer, position)

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """Judge, then pass on."""
        self._moved(stream.name, writer, prev, new, facts)
        self._listener.writer_advanced(stream, writer, prev, new, facts)

    def linear_advanced(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """Judge, then pass on."""
        self._moved(stream.name, ALL, prev, new, facts)
        self._listener.linear_advanced(stream, prev, new, facts)

    def _moved(
        self, stream: str, writer: str, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        who = writer or "the linear view"
        at = self._at.get((stream, writer), prev)
        if new == prev > at:  # advanced by a failover, without facts
            self._at[stream, writer] = new
            self._check_settled(stream, writer, new)
            self._truth.publish(stream, writer, new)
            return
        introduced = new == prev and self._at.get((stream, writer), new) == new
        if (prev != at or new <= prev) and not introduced:
            self._violations.add(
                "R2",
                "{who} of {stream} moved from {prev} to {new}, but was at {at}",
                who=who, stream=stream, prev=prev, new=new, at=at,
            )  # fmt: skip
        self._at[stream, writer] = new
        self._check_settled(stream, writer, new)
        real = self._truth.between(stream, writer, prev, new)
        # Nothing is announced before the start. A fact without rows leaves no trace in a table.
        lost = self._truth.lost
        given = None if facts is None else [
            # Facts that a failover has lost may still be announced.
            fact for fact in facts if fact.rows and (stream, fact.token) not in lost
        ]  # fmt: skip
        if self._started and given is not None and given != list(real):
            self._violations.add(
                "R3",
                "{who} of {stream} moved over ({prev}, {new}] with {given}, committed are {real}",
                who=who, stream=stream, prev=prev, new=new,
                given=tokens(given), real=tokens(real),
            )  # fmt: skip
        self._truth.publish(stream, writer, new)

    def _check_settled(self, stream: str, writer: str, position: Token) -> None:
        unsettled = self._unsettled(stream, writer)
        if unsettled is not None and unsettled <= position:
            self._violations.add(
                "R1",
                "{who} of {stream} is at {position}, past the unsettled {unsettled}",
                who=writer or "the linear view", stream=stream,
                position=position, unsettled=unsettled,
            )  # fmt: skip


class CommitChecker:
    """Checks each commit: it must not be at or below a published position."""

    def __init__(self, violations: Violations, truth: Truth) -> None:
        self._violations = violations
        self._truth = truth
        self._rows: set[object] = set()

    def committed(self, stream: str, facts: Sequence[Fact], void_upto: Mapping[str, Token]) -> None:
        """Facts became visible.

        :param void_upto: by writer: tokens up to here were discarded when it was fenced
        """
        for fact in facts:
            if not self._truth.committed(stream, fact):
                self._violations.add(
                    "R7", "token {token} of {stream} was given twice",
                    token=fact.token, stream=stream,
                )  # fmt: skip
            for row in fact.rows:  # rows are unique; retries use an idempotency key
                if isinstance(row, CachesRow):  # not unique
                    continue
                if row in self._rows:
                    self._violations.add(
                        "ONCE", "{row} was written to {stream} twice, now at {token}",
                        row=row, stream=stream, token=fact.token,
                    )  # fmt: skip
                self._rows.add(row)
            if fact.token <= void_upto.get(fact.writer, 0):
                self._violations.add(
                    "R8", "{fact} of {stream} by {writer} appears after that writer was fenced",
                    fact=fact.token, stream=stream, writer=fact.writer,
                )  # fmt: skip
            for writer in (fact.writer, ALL):
                at = self._truth.published.get((stream, writer), 0)
                if fact.token <= at:
                    self._violations.add(
                        "R1",
                        "{fact} of {stream} by {by} appears, but {who} was published at {at}",
                        fact=fact.token, stream=stream, by=fact.writer,
                        who=writer or "the linear view", at=at,
                    )  # fmt: skip

    def lose(self, facts: Sequence[Fact]) -> None:
        """A failover has lost facts: their rows may be written again."""
        for fact in facts:
            self._rows.difference_update(fact.rows)


class RecordChecker:
    """Checks that recorded positions never go back, and never pass unsettled tokens."""

    def __init__(self, violations: Violations, unsettled: Unsettled) -> None:
        self._violations = violations
        self._unsettled = unsettled
        self._seen: dict[tuple[str, str], Token] = {}

    def failed_over(self) -> None:
        """A failover has rolled recorded positions back."""
        self._seen.clear()

    def check(self, recorded: Mapping[tuple[str, str], Token]) -> None:
        """Compare recorded positions with the previous ones."""
        for key, position in recorded.items():
            before = self._seen.get(key, 0)
            if position == before:
                continue
            self._seen[key] = position
            stream, writer = key
            if position < before:
                self._violations.add(
                    "R7", "the record of {stream} {who} went from {before} back to {position}",
                    stream=stream, who=writer or "(linear)", before=before, position=position,
                )  # fmt: skip
            unsettled = self._unsettled(stream, writer)
            if unsettled is not None and unsettled <= position:
                self._violations.add(
                    "R1", "the record of {stream} {who} is {position}, past the unsettled {unsettled}",
                    stream=stream, who=writer or "(linear)", position=position, unsettled=unsettled,
                )  # fmt: skip


def tokens(facts: Sequence[Fact]) -> list[Token]:
    """The tokens of facts."""
    return [fact.token for fact in facts]

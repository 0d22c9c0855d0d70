"""Checks what the handlers of a follower receive, and the positions it reports (R3, R7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simulator.truth import ALL, Truth, Violations
from simulator.wire_checker import TooLong
from synrepl.core.tokens import Range, Token
from synrepl.streams.definition import Fact

Key = tuple[str, str]

#: Whether a token of (stream, writer) is in a range that a failover may have lost: a follower that
#: continues from there is refused, informed of the loss, and moved back.
MayBeLost = Callable[[str, str, Token], bool]


@dataclass(slots=True)
class FollowerTotals:
    """Counts of one handler, for the summary.

    :ivar applied: facts received, including ``duplicates``, which were received before
    :ivar resets: how often it was informed that facts are lost
    """

    applied: int = 0
    duplicates: int = 0
    resets: int = 0


class Checkpoint(NamedTuple):
    """The facts that a handler had received when a standby lost its primary."""

    covered: dict[Key, Token]
    ever: dict[Key, Token]


class FollowerChecker:
    """Checks one handler of a follower across all restarts of the follower.

    :param linear: whether it gets the linear view
    :param exactly_once: whether its effects and its position commit together
    :param earliest: whether it starts at the beginning of a stream
    :param alone: whether its follower's position is its own from the beginning
    :param too_long: facts too long for its connection that it cannot fetch either, because it gets the
        linear view; None for a handler that can fetch them
    :param may_be_lost: whether this database may have lost a token
    """

    def __init__(
        self,
        violations: Violations,
        truth: Truth,
        name: str,
        *,
        linear: bool,
        exactly_once: bool,
        earliest: bool,
        alone: bool,
        too_long: TooLong | None,
        may_be_lost: MayBeLost,
    ) -> None:
        self._violations = violations
        self._truth = truth
        self._name = name
        self._linear = linear
        self._exactly_once = exactly_once
        self._earliest = earliest
        self._alone = alone
        self._too_long = too_long
        self._may_be_lost = may_be_lost
        #: By lane: everything up to here was applied, by this process or an earlier one.
        self._covered: dict[Key, Token] = {}
        #: By lane: the highest token ever applied.
        self._highest: dict[Key, Token] = {}
        #: Facts that this process was informed to be lost.
        self._lost: set[tuple[str, Token]] = set()
        self._recorded: dict[Key, Token] = {}
        #: Lanes where it received something, or had a recorded position at a start. Positions of its
        #: follower as a whole do not count.
        self._started: set[Key] = set()
        self._reported: dict[tuple[str, Key], Token] = {}
        #: Facts that it ever received, and those of them that were lost by a failover, unreported.
        self._given: set[tuple[str, str, Token]] = set()
        self._unreported: set[tuple[str, str, Token]] = set()
        #: By stream: reported positions below this are from before the last failover.
        self._floors: Mapping[str, Token] = {}
        self.totals = FollowerTotals()

    def restarted(self, recorded: Mapping[Key, Token]) -> None:
        """The process has restarted, and continues from the handler's recorded positions."""
        self._started.update(key for key, position in recorded.items() if position)
        now = dict(recorded)
        for key, position in recorded.items():
            if self._is_binding(key, position):
                self._check_covered(key, position, "has on record")
            else:
                now[key] = min(position, self._covered.get(key, position))
        # If its record is lost altogether, nobody can know that it received anything.
        self._unreported = self._on_record_of(self._unreported, recorded)
        self._given = self._on_record_of(self._given, recorded)
        self._covered = now
        self._reported.clear()
        self._lost.clear()

    def _on_record_of(
        self, facts: set[tuple[str, str, Token]], recorded: Mapping[Key, Token]
    ) -> set[tuple[str, str, Token]]:
        """The facts of lanes with a recorded position."""
        return {each for each in facts if (each[0], ALL if self._linear else each[1]) in recorded}

    def applied(
        self, stream: str, writer: str, after: Token, upto: Token, facts: Sequence[Fact]
    ) -> None:
        """The handler has handled a batch, or its transaction was committed."""
        key = (stream, writer)
        covered = self._covered.get(key)
        if covered is None:
            covered = 0 if self._earliest else after
        facts = self._without_lost(stream, facts)
        self._check_complete(key, covered, after, "stepped over")
        self._started.add(key)
        self._check_equal(key, after, upto, facts)
        ever = self._highest.get(key, 0)
        again = [fact.token for fact in facts if fact.token <= ever]
        if again and self._exactly_once:
            self._broken(key, "applied {tokens} again, exactly once was promised", tokens=again)
        self.totals.applied += len(facts)
        self.totals.duplicates += len(again)
        self._given.update((stream, fact.writer, fact.token) for fact in facts)
        self._covered[key] = max(covered, upto)
        self._highest[key] = max(ever, upto)

    def lost_by_trim(self, stream: str, writer: str, position: Token) -> None:
        """It was informed that facts at or below ``position`` were trimmed."""
        self.totals.resets += 1
        covered = self._covered.get((stream, writer), 0)
        unseen = self._truth.between(stream, writer, covered, position)
        gone = [fact.token for fact in unseen if not self._truth.is_there(stream, fact)]
        if not gone:
            self._broken(
                (stream, writer), "was notified that facts up to {position} are lost, it lacks none",
                position=position,
            )  # fmt: skip
        self._lost.update((stream, token) for token in gone)

    def lost_by_failover(self, stream: str, writer: str, lost: Range) -> None:
        """It was informed that a failover may have lost facts in this range."""
        self.totals.resets += 1
        if self._exactly_once:
            self._broken((stream, writer), "was notified of losses, but they are rolled back here")
        self._unreported = {
            (of, by, token)
            for of, by, token in self._unreported
            if not (of == stream and writer in (by, ALL) and token in lost)
        }
        key = stream, writer
        self._covered[key] = min(lost.after, self._covered.get(key, lost.after))
        self._recorded.pop(key, None)

    def checkpoint(self) -> Checkpoint:
        """The state of the handler, as a standby with all current data has it."""
        return Checkpoint(dict(self._covered), dict(self._highest))

    def failed_over(self, floors: Mapping[str, Token], standby: Checkpoint) -> None:
        """The standby was promoted: effects that commit with positions are rolled back to it.

        :param floors: by stream: positions below are from before the failover
        """
        self._floors = floors
        self._recorded.clear()
        self._reported.clear()
        if self._exactly_once:
            self._covered, self._highest = dict(standby.covered), dict(standby.ever)
            return
        lost = {each for each in self._given if (each[0], each[2]) in self._truth.lost}
        self._given -= lost
        self._unreported |= lost

    def unreported_losses(self, stream: str) -> Sequence[Token]:
        """Lost facts of a stream that it received and was not informed of."""
        return sorted(token for of, _, token in self._unreported if of == stream)

    def _without_lost(self, stream: str, facts: Sequence[Fact]) -> Sequence[Fact]:
        """Remove lost facts; those in flight during a failover may still be delivered."""
        lost = [fact for fact in facts if (stream, fact.token) in self._truth.lost]
        if not lost:
            return facts
        if self._exactly_once:
            tokens = [fact.token for fact in lost]
            self._broken((stream, ALL), "applied {tokens}, which are lost", tokens=tokens)
        self._unreported |= {(stream, fact.writer, fact.token) for fact in lost}
        return [fact for fact in facts if fact not in lost]

    def reported(self, what: str, positions: Mapping[Key, Token]) -> None:
        """The follower has reported positions for all of its handlers.

        :param what: how: by its position, or by its record
        """
        for key, position in positions.items():
            floor = self._floors.get(key[0], 0)
            if position >= floor and position != self._reported.get((what, key)):
                self._reported[what, key] = position
                if bool(key[1]) is self._linear:
                    self._check_other_view(key, position, what)
                elif self._earliest or self._alone or key in self._covered:
                    self._check_covered(key, position, f"is said by its follower's {what} to be at")

    def on_record(self, positions: Mapping[Key, Token]) -> None:
        """Check the handler's recorded positions, from which it would continue after a crash."""
        for key, position in positions.items():
            before = self._recorded.get(key, 0)
            if position != before:
                self._recorded[key] = position
                if position < before and before >= self._floors.get(key[0], 0):
                    self._violations.add(
                        "R7", "{name}: the record of {key} went back from {before} to {position}",
                        name=self._name, key=key, before=before, position=position,
                    )  # fmt: skip
                if self._is_binding(key, position):
                    self._check_covered(key, position, "has on record")

    def missing(self, stream: str, writers: Iterable[str]) -> Sequence[Fact]:
        """Committed facts that the handler has not received.

        :param writers: all writers of the stream
        """
        found: list[Fact] = []
        for writer in (ALL,) if self._linear else sorted(set(writers) - {ALL}):
            covered = self._covered.get((stream, writer))
            if covered is not None or self._earliest:
                last = self._truth.last(stream, writer)
                found += self._missing(stream, writer, covered or 0, last)
        return found

    def _is_binding(self, key: Key, position: Token) -> bool:
        """Whether a recorded position implies that all facts up to it were received.

        Not where a failover may have lost it: a plain handler is informed of that, perhaps again, and
        receives the rest again. A handler whose effects commit with its record is not.
        """
        return self._exactly_once or not self._may_be_lost(*key, position)

    def _check_other_view(self, key: Key, position: Token, what: str) -> None:
        """Check a position of the view that the handler does not get."""
        stream, writer = key
        left = [
            fact.token
            for fact in self._missing(stream, writer, 0, position)
            if fact.token > self._covered_of(stream, fact)
        ]
        if left:
            self._broken(
                key, "is said by its follower's {what} to be at {position} without {tokens}",
                what=what, position=position, tokens=left,
            )  # fmt: skip

    def _covered_of(self, stream: str, fact: Fact) -> Token:
        """The covered position in the lane of a fact; facts from before it started are not owed."""
        key = (stream, ALL if self._linear else fact.writer)
        return self._covered.get(key, 0 if self._earliest else fact.token)

    def _check_covered(self, key: Key, position: Token, what: str) -> None:
        covered = self._covered.get(key)
        if covered is None:
            covered = 0 if self._earliest else position
        if covered < position:
            self._check_complete(key, covered, position, f"{what} {position} without")
        self._covered[key] = max(covered, position)

    def _check_complete(self, key: Key, after: Token, upto: Token, what: str) -> None:
        left = self._missing(*key, after, upto)
        if left:
            self._broken(key, what + " {tokens}", tokens=[fact.token for fact in left])

    def _check_equal(self, key: Key, after: Token, upto: Token, facts: Sequence[Fact]) -> None:
        stream, writer = key
        real = list(self._truth.between(stream, writer, after, upto))
        if self._too_long is not None:
            applied = {fact.token for fact in facts}
            real = [f for f in real if f.token in applied or self._is_owed(stream, f)]
        if [fact.token for fact in facts] != [fact.token for fact in real]:
            self._broken(
                key, "took ({after}, {upto}] with {given}, committed are {real}",
                after=after, upto=upto,
                given=[fact.token for fact in facts], real=[fact.token for fact in real],
            )  # fmt: skip
            return
        for fact, other in zip(facts, real, strict=True):
            if fact.rows != other.rows:
                self._broken(
                    key, "{token} has the rows {given}, committed are {real}",
                    token=fact.token, given=fact.rows, real=other.rows,
                )  # fmt: skip

    def _missing(self, stream: str, writer: str, after: Token, upto: Token) -> Sequence[Fact]:
        facts = self._truth.between(stream, writer, after, upto)
        if not facts:
            return ()
        if self._too_long is not None:
            return [fact for fact in facts if self._is_owed(stream, fact)]
        # A new handler has not lost what was trimmed before it started.
        return [
            fact for fact in facts
            if (stream, fact.token) not in self._lost
            and (
                self._truth.is_there(stream, fact) or (after and (stream, writer) in self._started)
            )
        ]  # fmt: skip

    def _is_owed(self, stream: str, fact: Fact) -> bool:
        """Whether a follower of the linear view must receive a fact.

        It cannot be informed that facts are lost, nor fetch those that are too long.
        """
        too_long = self._too_long is not None and self._too_long(stream, fact)
        return not too_long and self._truth.is_there(stream, fact)

    def _broken(self, key: Key, words: str, **facts: object) -> None:
        self._violations.add(
            "R3", "{name} at {stream} of {writer}: " + words,
            name=self._name, stream=key[0], writer=key[1] or "the linear view", **facts,
        )  # fmt: skip


class PositionReportChecker:
    """Checks that the positions a follower reports do not go back (R7)."""

    def __init__(self, violations: Violations, name: str) -> None:
        self._violations = violations
        self._name = name
        self._last_reported: dict[tuple[str, Key], Token] = {}
        self._floors: Mapping[str, Token] = {}

    def failed_over(self, floors: Mapping[str, Token]) -> None:
        """A standby was promoted; positions of a stream below its floor are from before."""
        self._floors = floors

    def restarted(self, recorded: Mapping[Key, Token]) -> None:
        """The process has restarted: its positions are the recorded ones."""
        for what, key in list(self._last_reported):
            if what == "position":
                del self._last_reported[what, key]
        self._last_reported.update({("position", key): at for key, at in recorded.items()})

    def reported(self, what: str, positions: Mapping[Key, Token]) -> None:
        """Check reported positions.

        :param what: how they are reported: by its position, or by its record
        """
        for key, position in positions.items():
            before = self._last_reported.get((what, key), 0)
            self._last_reported[what, key] = position
            if position < before and before >= self._floors.get(key[0], 0):
                self._violations.add(
                    "R7", "{name}: the {what} of {key} went back from {before} to {position}",
                    name=self._name, what=what, key=key, before=before, position=position,
                )  # fmt: skip

    def lowered(self) -> None:
        """A handler was added, for which the record may have moved back."""
        self._last_reported.clear()

"""Checks that no fact is trimmed too early (the rules of ``services.trimmer``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from simulator.interfaces import RetentionPeriods
from simulator.truth import ALL, Truth, Violations
from synrepl.core.tokens import Token
from synrepl.streams.definition import Fact, Stream

Key = tuple[str, str]


class TrimChecker:
    """Tracks leases and the age of facts.

    :param on_record: returns the recorded positions of a named follower
    :param retention: the configured retention
    """

    def __init__(
        self,
        violations: Violations,
        truth: Truth,
        seconds: Callable[[], float],
        on_record: Callable[[str], Mapping[Key, Token]],
        retention: RetentionPeriods,
    ) -> None:
        self._violations = violations
        self._truth = truth
        self._seconds = seconds
        self._on_record = on_record
        self._retention = retention
        self._leases: dict[str, float] = {}
        self._committed_at: dict[tuple[str, Token], float] = {}
        #: Number of trimmed facts.
        self.count = 0

    def renewed(self, follower: str, lease_s: float) -> None:
        """A follower has renewed its lease."""
        self._leases[follower] = self._seconds() + lease_s

    def committed(self, stream: str, fact: Fact) -> None:
        """A fact was committed."""
        self._committed_at[stream, fact.token] = self._seconds()

    def gone(self, stream: Stream, facts: Sequence[Fact]) -> None:
        """These facts were trimmed."""
        for fact in facts:
            self._truth.trimmed(stream.name, fact)
            self.count += 1
            age_s = self._seconds() - self._committed_at[stream.name, fact.token]
            if not stream.ephemeral:
                self._broken(stream, fact, "was trimmed, but the stream is not ephemeral")
            elif age_s < self._retention.keep_s:
                self._broken(stream, fact, "was trimmed {age:.1f} s after its commit", age=age_s)
            elif age_s < self._retention.max_s:
                self._check_acknowledged(stream, fact)

    def _check_acknowledged(self, stream: Stream, fact: Fact) -> None:
        for follower, expires_at in self._leases.items():
            at = self._on_record(follower)
            upto = max(at.get((stream.name, writer), 0) for writer in (fact.writer, ALL))
            if expires_at > self._seconds() and upto < fact.token:
                self._broken(stream, fact, "was trimmed, but {follower}, whose lease runs, has"
                             " acknowledged {upto}", follower=follower, upto=upto)  # fmt: skip

    def _broken(self, stream: Stream, fact: Fact, words: str, **facts: object) -> None:
        self._violations.add(
            "TRIM", "{token} of {stream} by {writer} " + words,
            token=fact.token, stream=stream.name, writer=fact.writer, **facts,
        )  # fmt: skip

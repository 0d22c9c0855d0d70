"""What observes the facts that a process applies, in masters and workers alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from synrepl.core.tokens import Token
from synrepl.streams.definition import Fact


class FactObserver(Protocol):
    """Gets the facts of every stream, after caches have dropped what they make stale.

    The position of their writer moves later: on a master, facts of its own writer may come before
    facts with lower tokens that are still being committed. Facts may come twice, where a process
    follows itself.

    A writer is ``""`` where facts come over a connection with the linear view.
    """

    def unknown_upto(self, stream: str, writer: str, token: Token) -> None:
        """Facts of a writer at or below ``token`` may be missing; those above it will be applied.

        Called for each writer before its first fact, and again whenever facts are lost.
        """

    def applied(self, stream: str, writer: str, facts: Sequence[Fact]) -> None:
        """These facts are applied."""

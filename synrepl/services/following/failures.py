"""Failing handlers, described once for the log, ``/status``, ``/ready`` and ``/wait``."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from synrepl.core.clock import Clock
from synrepl.core.log import Logger
from synrepl.core.tokens import Token
from synrepl.services.handlers import Batch
from synrepl.services.sources import LINEAR, Key
from synrepl.storage.followers.dead_letters import FailureReason

#: Limits in characters: of an exception's message, and of the end of its traceback.
MAX_MESSAGE = 500
MAX_TRACEBACK = 10_000

#: Places in the code that are remembered, so that each traceback is logged once.
MAX_PLACES = 1_000

#: Failed attempts that make a process not ready; a single one may be cured by the retry.
ATTEMPTS_OF_A_FAILURE = 2

#: Failures listed in a summary.
MAX_LISTED = 5


@dataclass(frozen=True, slots=True)
class HandlerFailure:
    """A handler that fails and is retried.

    :ivar what: ``facts`` or ``reset``
    :ivar after: start of the range of facts; ``upto`` is its end
    :ivar attempts: failed attempts, the first of them at ``since``
    :ivar since: in seconds by the clock of the process, like ``next_attempt_at``
    """

    handler: str
    stream: str
    writer: str
    what: str
    after: Token
    upto: Token
    error: str
    message: str
    attempts: int
    since: float
    next_attempt_at: float

    def sentence(self, now: float) -> str:
        """The failure as a sentence.

        :param now: in seconds by the clock of the process
        """
        return (
            f"handler {self.handler} fails at {self._range()}: {self.error}: {self.message}"
            f" (attempt {self.attempts}, failing for {max(0.0, now - self.since):.0f} s,"
            f" next attempt in {max(0.0, self.next_attempt_at - now):.0f} s)"
        )

    def to_json(self, now: float) -> dict[str, Any]:
        """The failure as JSON, with times in seconds from ``now``."""
        values = asdict(self)
        del values["since"], values["next_attempt_at"]
        return {
            **values,
            "failing_s": round(max(0.0, now - self.since), 3),
            "next_attempt_s": round(max(0.0, self.next_attempt_at - now), 3),
            "sentence": self.sentence(now),
        }

    def _range(self) -> str:
        batch = Batch(self.stream, self.writer, self.after, self.upto, ())
        return f"a reset of {self.stream}" if self.what == "reset" else str(batch)


class HandlerFailures:
    """Tracks and logs failures.

    :ivar failing: by handler, stream and writer
    :ivar total: failed attempts by handler
    """

    def __init__(self, clock: Clock, log: Logger) -> None:
        self._clock = clock
        self._log = log
        self._logged: set[tuple[str, str, str]] = set()
        self.failing: dict[tuple[str, str, str], HandlerFailure] = {}
        self.total: Counter[str] = Counter()

    def failed(
        self,
        handler: str,
        batch: Batch,
        error: Exception,
        attempts: int,
        pause_s: float,
        what: str = "facts",
    ) -> None:
        """Note a failed attempt; the next one comes in ``pause_s`` seconds."""
        now, place = self._clock.seconds(), (handler, batch.stream, batch.writer)
        before = self.failing.get(place)
        reason = reason_of(error)
        failure = self.failing[place] = HandlerFailure(
            handler,
            batch.stream,
            batch.writer,
            what,
            batch.after,
            batch.upto,
            reason.error,
            reason.message,
            attempts,
            now if before is None else before.since,
            now + pause_s,
        )
        self.log(handler, failure.sentence(now), error)

    def succeeded(self, handler: str, stream: str, writer: str) -> None:
        """Note that a handler succeeded."""
        if self.failing:
            self.failing.pop((handler, stream, writer), None)

    def log(self, handler: str, sentence: str, error: Exception) -> None:
        """Log an exception of a handler, with its traceback the first time at a place."""
        self.total[handler] += 1
        place = (handler, type(error).__name__, place_of(error))
        if place in self._logged:
            self._log.warn("{sentence}; at {place}, as before", sentence=sentence, place=place[2])
            return
        if len(self._logged) >= MAX_PLACES:
            self._logged.clear()
        self._logged.add(place)
        self._log.warn(
            "{sentence}\n{log_traceback}",
            sentence=sentence,
            log_traceback=reason_of(error).traceback,
        )

    def summary(self, place: Key | None = None) -> str | None:
        """The failures as one sentence each; None without failures.

        :param place: only failures that hold back this (stream, writer); by default all that a
            retry has not cured
        """
        now = self._clock.seconds()
        found = [
            failure.sentence(now)
            for failure in sorted(self.failing.values(), key=lambda failure: failure.since)
            if (
                failure.attempts >= ATTEMPTS_OF_A_FAILURE
                if place is None
                else _concerns(failure, *place)
            )
        ]
        more = f"; and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
        return "; ".join(found[:MAX_LISTED]) + more if found else None


def _concerns(failure: HandlerFailure, stream: str, writer: str) -> bool:
    return failure.stream == stream and (
        failure.writer == writer or LINEAR in (failure.writer, writer)
    )


def reason_of(error: Exception) -> FailureReason:
    """An exception as text that can be stored, of bounded length."""
    frames = "".join(traceback.format_exception(error))
    return FailureReason(
        type(error).__name__,
        _storable(" ".join(str(error).split()))[:MAX_MESSAGE],
        _storable(frames)[-MAX_TRACEBACK:],
    )


def place_of(error: Exception) -> str:
    """File and line where an exception was raised; "" when unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")

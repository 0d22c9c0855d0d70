"""Carrying a call out: what is sent, what is tried again and when, and what becomes of it; no I/O.

:func:`exchange` is a generator that asks its driver to send a request or to pause, so that the
blocking and the asynchronous client share all decisions.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar

from synrepl.client.errors import (
    SecretRequired,
    ServerBusy,
    ServerRefused,
    UnusableAnswer,
    WaitExpired,
)
from synrepl.core import jsons
from synrepl.core.backoff import pause
from synrepl.core.errors import InputError, SynreplError, Unavailable

T = TypeVar("T")

_log = logging.getLogger("synrepl.client")

#: Limits of the back-off between two attempts, in seconds.
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0

#: Statuses after which the same request may succeed: the server's own 503, and those of proxies.
_TRANSIENT = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An HTTP answer.

    :ivar retry_after_s: seconds, from the header; None without it
    """

    status: int
    body: bytes
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClientCall(Generic[T]):
    """One question to a process.

    :ivar path: gives the path and query, from the seconds that are left for the call
    :ivar read: makes the result of the decoded body
    :ivar accept: the statuses of answers to be read
    :ivar refused: makes the error of a refusal
    :ivar unconfirmed: makes the error of a call that was given up although a request may have been
        carried out; None where that does no harm
    """

    method: str
    path: Callable[[float], str]
    read: Callable[[dict[str, Any], int], T]
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    accept: frozenset[int] = frozenset({200})
    refused: Callable[..., SynreplError] = ServerRefused
    unconfirmed: Callable[[float, SynreplError], SynreplError] | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request, and bring the answer, or the error that there is none.

    :ivar timeout_s: the most that it may take
    """

    method: str
    path: str
    body: bytes | None
    headers: Mapping[str, str]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next step."""

    seconds: float


@dataclass(frozen=True, slots=True)
class NoReply:
    """Why there is no answer.

    :ivar maybe_received: the process may have carried the request out
    """

    error: SynreplError
    maybe_received: bool


Step = Send | Pause
SendOutcome = HttpReply | NoReply | None


def exchange(
    call: ClientCall[T], url: str, timeout_s: float, retries: bool, now: Callable[[], float]
) -> Generator[Step, SendOutcome, T]:
    """Carry a call out; its driver sends an answer, or why there is none, after each :class:`Send`.

    :param timeout_s: for all attempts and pauses together
    :param retries: repeat what failed for now
    :raises SynreplError: the call failed
    """
    deadline = now() + timeout_s
    tries = 0
    maybe_done = False
    while True:
        tries += 1
        left = max(deadline - now(), 0.001)
        outcome = yield Send(call.method, call.path(left), call.body, call.headers, left)
        retry_after_s: float | None = None
        if isinstance(outcome, NoReply):
            error = outcome.error
            maybe_done |= outcome.maybe_received
        else:
            assert outcome is not None
            try:
                return _result(call, url, outcome, tries)
            except SynreplError as failed:
                error = failed
            retry_after_s = outcome.retry_after_s
            maybe_done |= outcome.status in (502, 504) or _commit_unknown(error)
        if not (isinstance(error, Unavailable) or _commit_unknown(error)) or isinstance(
            error, WaitExpired
        ):
            raise error
        wait = max(
            pause(tries, base=SHORTEST_PAUSE_S, longest=LONGEST_PAUSE_S), retry_after_s or 0.0
        )
        if not retries or now() + wait >= deadline:
            if maybe_done and call.unconfirmed is not None:
                raise call.unconfirmed(timeout_s, error)
            raise error
        _log.info("attempt %d failed, again in %.1f s: %s", tries, wait, error)
        yield Pause(wait)


def _commit_unknown(error: SynreplError) -> bool:
    """The process itself does not know whether it has committed."""
    return isinstance(error, ServerRefused) and error.code == "CommitUnknown"


def _result(call: ClientCall[T], url: str, answer: HttpReply, tries: int) -> T:
    """The result of a call.

    :raises SynreplError: the answer is none, or a refusal
    """
    status = answer.status
    try:
        found = jsons.decode(answer.body, "it")
    except InputError as error:
        if status not in _TRANSIENT:
            raise UnusableAnswer(url=url, reason=f"{status}, {error}") from None
        found = {}
    if not isinstance(found, dict):
        raise UnusableAnswer(url=url, reason=f"{status}, not a JSON object")
    if status in call.accept:
        try:
            return call.read(found, tries)
        except (KeyError, TypeError, ValueError):
            raise UnusableAnswer(url=url, reason="it lacks what was asked for") from None
    if status == 401:
        raise SecretRequired(url=url)
    code, message = str(found.get("error", ""))[:100], str(found.get("message", ""))[:1000]
    if status in _TRANSIENT and code != "WaitTimedOut":
        raise ServerBusy(url=url, status=status, code=code, message=message)
    raise call.refused(url=url, status=status, code=code, message=message)


def retry_after(value: str | None) -> float | None:
    """The seconds of a ``Retry-After`` header, a number or a date; None when there is none."""
    if value is None:
        return None
    if re.fullmatch(r"\d{1,9}", value.strip(), re.ASCII):
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, TypeError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())

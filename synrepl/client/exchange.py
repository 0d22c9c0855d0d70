"""Retries and outcomes of a client call, without I/O.

:func:`exchange` is a generator that asks its driver to send a request or to pause, so the blocking
and the asynchronous client share all decisions.
"""

from __future__ import annotations

import logging
import random as system_random
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
from synrepl.core.errors import InputError, SynreplError, Unavailable
from synrepl.core.retry import BackOff, RandomSource, Retry

T = TypeVar("T")

_log = logging.getLogger("synrepl.client")

#: Back-off between two attempts.
BACK_OFF = BackOff(0.1, 2.0)

#: Statuses after which the same request may succeed: the server's own 503, and those of proxies.
_TRANSIENT = frozenset({429, 502, 503, 504})

#: Statuses after which the request may have been executed: 200 with an unusable body, errors
#: during execution, and those of proxies that lost the server's answer.
_AMBIGUOUS = frozenset({200, 500, 502, 504})

#: Refusals of the body or the key, which apply to every attempt of the same request.
_ABOUT_CONTENT = frozenset({400, 413, 422})


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An HTTP answer that was received completely.

    :ivar retry_after_s: the Retry-After header in seconds; None without it
    """

    status: int
    body: bytes
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClientCall(Generic[T]):
    """A request and the decoding of its answer.

    :ivar path: makes path and query, given the seconds left for the call
    :ivar read: makes the result from the decoded body and the number of attempts
    :ivar accept: statuses whose body is the result
    :ivar refused: makes the error of a refusal
    :ivar unconfirmed: makes the error of a failed call that may have been executed; None for
        calls that change nothing
    """

    method: str
    path: Callable[[float], str]
    read: Callable[[dict[str, Any], int], T]
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    accept: frozenset[int] = frozenset({200})
    refused: Callable[..., SynreplError] = ServerRefused
    unconfirmed: Callable[[SynreplError], SynreplError] | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Asks the driver to send a request.

    :ivar timeout_s: timeout of this attempt
    """

    method: str
    path: str
    body: bytes | None
    headers: Mapping[str, str]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Asks the driver to wait before the next step."""

    seconds: float


@dataclass(frozen=True, slots=True)
class NoReply:
    """An attempt without an answer.

    :ivar maybe_received: the process may have received the request
    """

    error: SynreplError
    maybe_received: bool


Step = Send | Pause
SendOutcome = HttpReply | NoReply | None


def exchange(
    call: ClientCall[T],
    url: str,
    timeout_s: float,
    retries: bool,
    now: Callable[[], float],
    random: RandomSource = system_random.random,
) -> Generator[Step, SendOutcome, T]:
    """Carry out a call. The driver answers each :class:`Send` with a reply or a :class:`NoReply`.

    :param timeout_s: timeout of all attempts and pauses together
    :param retries: whether to repeat the request after a temporary failure
    :param random: source of the jitter
    :raises SynreplError: the call failed
    """
    deadline = now() + timeout_s
    retry = Retry(BACK_OFF, random)
    may_have_happened = False
    while True:
        left = max(deadline - now(), 0.001)
        outcome = yield Send(call.method, call.path(left), call.body, call.headers, left)
        assert outcome is not None
        retry_after_s: float | None = None
        if isinstance(outcome, NoReply):
            error = outcome.error
            may_have_happened |= outcome.maybe_received
        else:
            try:
                return _result(call, url, outcome, retry.failures + 1)
            except SynreplError as failed:
                error = failed
            retry_after_s = outcome.retry_after_s
            may_have_happened |= outcome.status in _AMBIGUOUS
        wait = max(retry.failed(), retry_after_s or 0.0)
        if not retries or not _is_temporary(error) or now() + wait >= deadline:
            if may_have_happened and call.unconfirmed and not _is_about_content(error):
                raise call.unconfirmed(error)
            raise error
        _log.info("attempt %d failed, again in %.1f s: %s", retry.failures, wait, error)
        yield Pause(wait)


def _is_temporary(error: SynreplError) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, ServerRefused):
        return error.code == "CommitUnknown"
    return isinstance(error, Unavailable) and not isinstance(error, WaitExpired)


def _is_about_content(error: SynreplError) -> bool:
    """Whether a refusal holds for every attempt, including those without an answer."""
    return isinstance(error, ServerRefused) and error.status in _ABOUT_CONTENT


def _result(call: ClientCall[T], url: str, answer: HttpReply, tries: int) -> T:
    """Decode the result of a call.

    :raises SynreplError: the answer is a refusal, or cannot be used
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
    """The seconds of a ``Retry-After`` header, which is a number or a date; None without one."""
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

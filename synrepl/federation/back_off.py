"""When a destination that has failed is asked again, and what counts as a failure."""

from __future__ import annotations

from typing import NamedTuple

from synrepl.core.retry import BackOff, RandomSource

#: From seconds, since most servers are away only for a restart, to a day.
DESTINATION_BACK_OFF = BackOff(first_s=10.0, longest_s=86_400.0)

#: Statuses with which a server that answers is not well, or does not want to be asked now.
_FAILURES = frozenset({401, 408, 429})


class DestinationFailure(NamedTuple):
    """A destination that has failed.

    :ivar failing_since_ms: time of the first failure in a row, in milliseconds since 1970
    :ivar failures: their number
    :ivar failed_at_ms: time of the last one
    :ivar retry_at_ms: time before which it is not asked
    :ivar reason: of the last one
    """

    failing_since_ms: int
    failures: int
    failed_at_ms: int
    retry_at_ms: int
    reason: str


def is_failure(status: int) -> bool:
    """Whether an answer with this status means that the destination is not well.

    Other refusals are about one request. A 401 is not: the server cannot verify what this one signs.
    """
    return status >= 500 or status in _FAILURES


def failed(
    before: DestinationFailure | None,
    began_ms: int,
    now_ms: int,
    reason: str,
    random: RandomSource,
    retry_after_s: float = 0.0,
) -> DestinationFailure:
    """Count a failure.

    Attempts that were made at the same time and failed together count as one.

    :param before: the failures so far; None after a success
    :param began_ms: time at which the attempt began
    :param retry_after_s: seconds that the server wants to be left alone
    """
    if before is not None and began_ms < before.failed_at_ms:
        return before
    failures = 1 if before is None else before.failures + 1
    delay_s = DESTINATION_BACK_OFF.delay_s(failures, random)
    delay_s = max(delay_s, min(retry_after_s, DESTINATION_BACK_OFF.longest_s))
    return DestinationFailure(
        now_ms if before is None else before.failing_since_ms,
        failures,
        now_ms,
        now_ms + int(delay_s * 1000),
        reason,
    )

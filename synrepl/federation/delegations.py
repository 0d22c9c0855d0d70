"""How long it is remembered what a ``.well-known`` document said, and that there was none.

Source: https://spec.matrix.org/v1.16/server-server-api/#resolving-server-names
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from synrepl.core.retry import BackOff, RandomSource

#: Seconds for which a document counts when its answer does not say, and at least and at most.
DEFAULT_LIFETIME_S = 24 * 3600.0
SHORTEST_LIFETIME_S = 5 * 60.0
LONGEST_LIFETIME_S = 48 * 3600.0

#: Seconds for which it counts that there is no document.
ABSENT_S = 3600.0

#: The same where the host did not answer, or with a temporary error.
UNAVAILABLE = BackOff(first_s=120.0, longest_s=3600.0)

#: Share of a lifetime that is taken away at random, so that what was learned together does not end together.
_JITTER = 0.1

#: The last share of a lifetime is a grace period: the document counts while it is fetched again.
_GRACE = 0.2

_MAX_AGE = re.compile(r"max-age\s*=\s*\"?(\d{1,10})", re.ASCII | re.IGNORECASE)


class Delegation(NamedTuple):
    """What is known of a host's document.

    :ivar delegated: the server name in it; None if there is none
    :ivar refresh_at: time at which to fetch it again, while it still counts
    :ivar expires_at: time at which it counts no more
    :ivar usable_until: time until which it counts if the host does not answer
    :ivar failures: times in a row that the host did not answer
    """

    delegated: str | None
    refresh_at: float
    expires_at: float
    usable_until: float
    failures: int = 0


def found(delegated: str, lifetime_s: float, now: float, random: RandomSource) -> Delegation:
    """A document was fetched.

    :param lifetime_s: see :func:`lifetime_s`
    """
    lasting = max(SHORTEST_LIFETIME_S, lifetime_s * (1.0 - _JITTER * random()))
    return Delegation(
        delegated, now + lasting * (1.0 - _GRACE), now + lasting, now + LONGEST_LIFETIME_S
    )


def absent(now: float, random: RandomSource) -> Delegation:
    """The host answered that there is no document, or one that is not acceptable."""
    until = now + ABSENT_S * (1.0 - _JITTER * random())
    return Delegation(None, until, until, until)


def unavailable(before: Delegation | None, now: float, random: RandomSource) -> Delegation:
    """The host did not answer, or with a temporary error.

    :param before: what was known
    """
    failures = 1 if before is None else before.failures + 1
    until = now + UNAVAILABLE.delay_s(failures, random)
    if before is not None and before.delegated is not None and now < before.usable_until:
        until = min(until, before.usable_until)
        return Delegation(before.delegated, until, until, before.usable_until, failures)
    return Delegation(None, until, until, until, failures)


def lifetime_s(cache_control: Sequence[str], expires: str | None, now: float) -> float:
    """For how many seconds an answer counts, by its headers.

    :param cache_control: the values of ``Cache-Control``
    :param expires: the value of ``Expires``; counts without ``max-age``
    """
    directives = ",".join(cache_control).lower()
    if "no-store" in directives or "no-cache" in directives:
        return SHORTEST_LIFETIME_S
    age = _MAX_AGE.search(directives)
    if age is not None:
        return min(max(float(age[1]), SHORTEST_LIFETIME_S), LONGEST_LIFETIME_S)
    if expires is not None:
        try:
            left = parsedate_to_datetime(expires).timestamp() - now
        except (ValueError, TypeError, OverflowError):
            return SHORTEST_LIFETIME_S  # as RFC 9111 wants of a date that cannot be read
        return min(max(left, SHORTEST_LIFETIME_S), LONGEST_LIFETIME_S)
    return DEFAULT_LIFETIME_S

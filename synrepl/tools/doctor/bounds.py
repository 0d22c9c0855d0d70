"""From when on something counts as wrong."""

from __future__ import annotations

from dataclasses import dataclass

from synrepl.services.writing.periodic import KEEP_KEYS_S

TRANSACTION_S = 60.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Times are in seconds.

    :ivar transaction_s: a transaction, or a reservation, may be so old
    :ivar behind: a follower may be so many tokens behind
    :ivar silent_s: a named follower's process may have given no sign for so long
    :ivar lease_s: a lease that ends within so much is told of
    :ivar failover_days: a failover is told of for so many days
    :ivar key_s: an idempotency key may be so old: a day longer than keys are kept
    """

    transaction_s: float = TRANSACTION_S
    behind: int = 10_000
    silent_s: float = 60.0
    lease_s: float = 3600.0
    key_s: float = KEEP_KEYS_S + 24 * 3600.0
    failover_days: float = 30.0

"""Thresholds for findings."""

from __future__ import annotations

from dataclasses import dataclass

from synrepl.services.writing.periodic import KEEP_KEYS_S

TRANSACTION_S = 60.0


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds for findings; times are in seconds unless named otherwise.

    :ivar transaction_s: maximum age of a transaction or reservation
    :ivar behind: maximum lag of a follower, in tokens
    :ivar silent_s: maximum time since the last heartbeat of a named follower
    :ivar lease_s: a lease that ends within this time is reported
    :ivar destination_days: days for which a destination fails before it is reported
    :ivar failover_days: days for which a failover is reported
    :ivar key_s: maximum age of an idempotency key: a day longer than keys are kept
    """

    transaction_s: float = TRANSACTION_S
    behind: int = 10_000
    silent_s: float = 60.0
    lease_s: float = 3600.0
    key_s: float = KEEP_KEYS_S + 24 * 3600.0
    destination_days: float = 3.0
    failover_days: float = 30.0

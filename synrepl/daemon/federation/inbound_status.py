"""What a process shows of events of other servers, and of what it answers these about rooms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synrepl.daemon.assemble.inbound import InboundServices


def inbound_status(inbound: InboundServices) -> dict[str, Any]:
    """The counters."""
    judging, left = inbound.judging, inbound.sweeper.left
    receiver = inbound.receiver
    return {
        "transactions": {"active": receiver.active, "outcomes": dict(receiver.outcomes)},
        "edus": {f"{kind} {outcome}": n for (kind, outcome), n in inbound.edus.outcomes.items()},
        "staged": {"events": left.staged, "oldest_s": round(left.staged_for_s, 1)},
        "failed_fetches": left.failed,
        "judged": {} if judging is None else dict(judging.inboxes.outcomes),
        "waiting": _waiting(inbound),
        "gaps": {
            "rooms": 0 if judging is None else judging.gaps.active,
            "outcomes": {} if judging is None else dict(judging.gaps.outcomes),
        },
        "backfill": {
            "rooms": 0 if judging is None else judging.backfill.active,
            "outcomes": {} if judging is None else dict(judging.backfill.outcomes),
        },
        "memberships": dict(inbound.arrivals.outcomes),
        "invites": dict(inbound.invites.outcomes),
        "state_answers": inbound.streams.active,
    }


def _waiting(inbound: InboundServices) -> Mapping[str, int]:
    if inbound.judging is None:
        return {"events": 0, "bytes": 0}
    events, size = inbound.judging.inboxes.waiting
    return {"events": events, "bytes": size}

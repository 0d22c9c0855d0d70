"""Findings about sending to other servers."""

from __future__ import annotations

from collections.abc import Iterator

from synrepl.storage.federation.destination_overview import SendingFigures
from synrepl.tools.doctor.report import Finding, Severity
from synrepl.tools.doctor.thresholds import Thresholds

#: Maximum number of destinations that are named.
MAX_NAMED = 5

_DAY_MS = 86_400_000


def sending_findings(
    sending: SendingFigures | None, thresholds: Thresholds, now_s: float
) -> Iterator[Finding]:
    """List what is wrong with sending.

    :param now_s: the time, in seconds since 1970
    """
    if sending is None:
        return
    if sending.unowned:
        owners = sorted({each.owner or "nobody yet" for each in sending.unowned})
        last = min(each.position or 0 for each in sending.unowned)
        yield Finding(
            "destinations-unowned",
            Severity.WARNING,
            f"no process sends to the servers in {len(sending.unowned)} of the destination partitions, which are at"
            f" {last} of {sending.position} events (they belonged to {', '.join(owners)})",
            "federation",
            "start the processes that 'federation_sender_instances' names, or take those out that are gone",
        )
    since = now_s * 1000 - thresholds.destination_days * _DAY_MS
    stuck = [each for each in sending.longest if (each.failing_since_ms or since) < since]
    if stuck:
        names = ", ".join(f"{each.destination} ({each.reason})" for each in stuck[:MAX_NAMED])
        more = f", and {len(stuck) - MAX_NAMED} more" if len(stuck) > MAX_NAMED else ""
        yield Finding(
            "destinations-stuck",
            Severity.NOTE,
            f"servers that have failed for more than {thresholds.destination_days:g} days, and for which something"
            f" waits: {names}{more}",
            "federation",
            "'synrepl federation destinations' lists them; 'synrepl federation destinations reset SERVER' has one asked"
            " again",
        )

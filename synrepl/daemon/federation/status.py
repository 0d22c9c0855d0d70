"""What a process shows of other servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from synrepl.daemon.assemble.federation import FederationServices
from synrepl.daemon.assemble.inbound import InboundServices
from synrepl.daemon.assemble.joining import JoiningServices
from synrepl.daemon.federation.inbound_status import inbound_status
from synrepl.daemon.federation.listener import FederationListener
from synrepl.services.federation.sending.sender import FederationSender

#: Shows the state of federation; None where it is not configured.
FederationStatus = Callable[[], Mapping[str, Any] | None]


def federation_status(
    services: FederationServices | None,
    inbound: InboundServices | None,
    sending: FederationSender | None,
    joining: JoiningServices | None,
    listener: FederationListener | None,
) -> FederationStatus:
    """A function that shows what became of requests, which servers fail, and what the listener does."""

    def status() -> Mapping[str, Any] | None:
        if services is None:
            return None
        failing = services.transport.failing
        return {
            "requests": dict(services.transport.outcomes),
            "failing": failing.number,
            "failing_longest": [
                {
                    "server": each.server_name,
                    "since_ms": each.failure.failing_since_ms,
                    "failures": each.failure.failures,
                    "retry_at_ms": each.failure.retry_at_ms,
                    "reason": each.failure.reason,
                }
                for each in failing.longest
            ],
            "keys": {"fetched": services.keys.fetched, "failed": services.keys.failed},
            "events": {
                "verified": services.verifier.verified,
                "dropped": services.verifier.dropped,
            },
            "answers": services.ports.usage(),
            "inbound": None if inbound is None else inbound_status(inbound),
            "joins": None if joining is None else joining.joins.status(),
            "sending": None if sending is None else sending.status(),
            "listener": None if listener is None else listener.status(),
        }

    return status

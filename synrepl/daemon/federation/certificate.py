"""The certificate of the listener for other servers."""

from __future__ import annotations

from synrepl.adapters.federation.certificates import BadCertificate, ServedCertificate
from synrepl.core.clock import Clock
from synrepl.core.log import Logger
from synrepl.daemon.config.federation import FederationConfig


def served_certificate(
    section: FederationConfig, clock: Clock, log: Logger
) -> ServedCertificate | None:
    """The certificate that is configured; None for plain HTTP.

    :raises BadCertificate: it cannot be used
    """
    if section.tls_certificate is None or section.tls_private_key is None:
        return None

    def report(error: BadCertificate) -> None:
        log.warn("the certificate that was read before is served on: {error}", error=error)

    return ServedCertificate(
        section.tls_certificate, section.tls_private_key, clock.seconds, report
    )

"""TLS for the connections of a listener."""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IAddress
from twisted.protocols.tls import TLSMemoryBIOFactory

from synrepl.adapters.federation.certificates import ServedCertificate


class TlsListenerFactory(TLSMemoryBIOFactory):
    """Makes TLS connections around those of another factory, and none where that makes none.

    :param reactor: provides time
    """

    def __init__(self, reactor: Any, certificate: ServedCertificate, factory: Any) -> None:
        creator: Any = certificate
        super().__init__(creator, False, factory, clock=reactor)

    def buildProtocol(self, addr: IAddress | None) -> Any:
        """A connection; None beyond the limits of the other factory."""
        inner = self.wrappedFactory.buildProtocol(addr)
        return None if inner is None else self.protocol(self, inner)

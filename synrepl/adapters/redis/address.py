"""Address and credentials of a Redis server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from OpenSSL.crypto import (  # type: ignore[import-not-found,unused-ignore]
    Error as NoCertificate,
)
from twisted.internet import ssl
from twisted.internet.endpoints import HostnameEndpoint, UNIXClientEndpoint, wrapClientTLS

from synrepl.core.clock import Scheduler
from synrepl.core.errors import ConfigError

#: Timeout for connecting, in seconds.
CONNECT_TIMEOUT_S = 10.0


class BadCertificates(ConfigError):
    """redis: {path} has no certificates that can be used: {reason}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """One Redis server, and how to log in.

    :ivar path: its unix socket; ``host`` and ``port`` are then ignored
    :ivar username: ACL user (Redis 6); None for the default user
    :ivar database: selected at login. All databases share the channels, but an ACL or a
        proxy may require a certain one
    :ivar tls: connect with TLS; the server's certificate must be valid for ``host``
    :ivar must_be_master: refuse a replica, because messages published there do not reach
        the subscribers of its master
    :ivar ca_file: PEM file with the certificates to trust; None for the system's
    """

    host: str = "127.0.0.1"
    port: int = 6379
    path: Path | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    tls: bool = False
    ca_file: Path | None = None
    must_be_master: bool = False

    def __str__(self) -> str:
        return str(self.path) if self.path is not None else f"{self.host}:{self.port}"

    def check(self, reactor: Any) -> None:
        """Check what can be checked without connecting.

        :raises BadCertificates:
        """
        self.endpoint(reactor)

    async def find(self, reactor: Any, scheduler: Scheduler) -> RedisAddress:
        """The server to connect to, which is this one; see :meth:`.Sentinels.find`."""
        return self

    def endpoint(self, reactor: Any) -> Any:
        """An ``IStreamClientEndpoint`` of this server.

        :raises BadCertificates:
        """
        if self.path is not None:
            return UNIXClientEndpoint(reactor, str(self.path), timeout=CONNECT_TIMEOUT_S)
        plain = HostnameEndpoint(reactor, self.host, self.port, timeout=CONNECT_TIMEOUT_S)
        return _with_tls(plain, self.host, self.ca_file) if self.tls else plain


def _with_tls(plain: Any, host: str, ca_file: Path | None) -> Any:
    trust = None
    if ca_file is not None:
        try:
            trust = ssl.trustRootFromCertificates(
                [ssl.Certificate.loadPEM(pem) for pem in _certificates(ca_file.read_bytes())]
            )
        except (OSError, ValueError, NoCertificate) as error:
            raise BadCertificates(path=ca_file, reason=error) from None
    return wrapClientTLS(ssl.optionsForClientTLS(host, trustRoot=trust), plain)


def _certificates(pem: bytes) -> list[bytes]:
    end = b"-----END CERTIFICATE-----"
    found = [part + end for part in pem.split(end)[:-1]]
    if not found:
        raise ValueError("there is no PEM certificate in it")
    return found

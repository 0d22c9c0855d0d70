"""The ``federation`` section of ``rooms``: other servers, and a listener for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Annotated, Any

from synrepl.core.loopback import LOOPBACK, is_loopback
from synrepl.daemon.config import values
from synrepl.daemon.config.client_api import RateLimitConfig
from synrepl.daemon.config.decode import Scalar, Section, Unfit
from synrepl.daemon.config.files import SettingLocation
from synrepl.federation.server_acl import ServerAcl
from synrepl.federation.server_names import parse_server_name
from synrepl.federation.transactions import MAX_TRANSACTION
from synrepl.rooms import BadServerKey, ServerKey, server_key


def _network(value: Any, place: SettingLocation) -> str:
    if not isinstance(value, str):
        raise ValueError("not text")
    return str(ip_network(value))


def _other_server(value: Any, place: SettingLocation) -> str:
    if not isinstance(value, str):
        raise ValueError("not text")
    parse_server_name(value)
    return value


NetworkName = Annotated[str, Scalar("a network such as '127.0.0.0/8' or 'fd00::/8'", _network)]
OtherServer = Annotated[str, Scalar("the name of a server", _other_server)]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyServerConfig(Section):
    """A server that is trusted to know the keys of others.

    :ivar verify_keys: its own public keys in unpadded Base64, by their IDs; none to fetch them from itself
    """

    server_name: OtherServer
    verify_keys: Mapping[str, str] = field(default_factory=dict)

    def faults(self) -> Iterator[Unfit]:
        try:
            _ = self.keys
        except BadServerKey as error:
            yield Unfit(key="verify_keys", reason=error)

    @property
    def keys(self) -> Mapping[str, ServerKey]:
        """The keys.

        :raises BadServerKey: one is malformed
        """
        return {key_id: server_key(key_id, key) for key_id, key in self.verify_keys.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAclConfig(Section):
    """Which servers take part in federation with this one, as in ``m.room.server_acl``.

    :ivar allow: patterns of names, in which ``*`` stands for any characters and ``?`` for one
    """

    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()
    allow_ip_literals: bool = True

    @property
    def acl(self) -> ServerAcl:
        """The list."""
        return ServerAcl(
            {
                "allow": list(self.allow),
                "deny": list(self.deny),
                "allow_ip_literals": self.allow_ip_literals,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationConfig(Section):
    """Other servers. Without this section, a process neither asks nor answers any.

    :ivar port: of a listener for other servers; None for none in this process
    :ivar tls_certificate: file with the certificate of the listener, and those between it and its authority; None
        for plain HTTP, behind a proxy. Read again when it has changed
    :ivar tls_private_key: file with its key
    :ivar insecure: the operator accepts plain HTTP on an address that other machines can reach
    :ivar x_forwarded: the listener is behind a proxy, which says in ``X-Forwarded-For`` what address a server has
    :ivar well_known: the name and port that other servers are to use instead of this server's name, which the
        listener tells them at ``/.well-known/matrix/server``
    :ivar trusted_ca_files: files with certificates of authorities that are trusted besides those of the system
    :ivar trust_system_authorities: those of the system are trusted
    :ivar allow_private_addresses: networks in which servers may be although their addresses are not public
    :ivar trusted_key_servers: servers that are asked for keys of others
    :ivar server_acl: which servers are asked and answered at all
    :ivar spool_dir: directory for large answers; None for the system's directory for temporary files
    :ivar max_body: maximum size of a request body, in bytes
    :ivar max_concurrent: maximum number of requests of a server that are answered at the same time
    :ivar rate_limit: of the requests of a server
    :ivar failure_limit: of requests of an address that are signed wrongly
    """

    port: values.Port | None = None
    bind_address: str = LOOPBACK
    tls_certificate: values.File | None = field(
        default=None, metadata={"key": "tls_certificate_path"}
    )
    tls_private_key: values.File | None = field(
        default=None, metadata={"key": "tls_private_key_path"}
    )
    insecure: bool = False
    x_forwarded: bool = False
    well_known: OtherServer | None = None
    trusted_ca_files: tuple[values.File, ...] = ()
    trust_system_authorities: bool = True
    allow_private_addresses: tuple[NetworkName, ...] = ()
    trusted_key_servers: tuple[KeyServerConfig, ...] = ()
    server_acl: ServerAclConfig | None = None
    spool_dir: values.Directory | None = None
    max_body: values.Size = MAX_TRANSACTION
    max_connections: values.Count = 2_000
    max_connections_per_address: values.Count = 200
    max_concurrent: values.Count = 20
    rate_limit: RateLimitConfig = field(
        default_factory=lambda: RateLimitConfig(per_second=50, burst=500)
    )
    failure_limit: RateLimitConfig = field(
        default_factory=lambda: RateLimitConfig(per_second=5, burst=50)
    )

    @property
    def has_tls(self) -> bool:
        """Whether the listener has a certificate."""
        return self.tls_certificate is not None

    def faults(self) -> Iterator[Unfit]:
        if (self.tls_certificate is None) != (self.tls_private_key is None):
            yield Unfit(
                key="tls_certificate_path", reason="give it together with tls_private_key_path"
            )
        if not self.has_tls and not self.insecure and not is_loopback(self.bind_address):
            yield Unfit(
                key="bind_address",
                reason=f"{self.bind_address!r} can be reached from other machines, and other servers speak TLS only: "
                "give tls_certificate_path and tls_private_key_path, bind to 127.0.0.1 behind a proxy, or accept "
                "plain text by 'insecure: true'",
            )
        if not self.trust_system_authorities and not self.trusted_ca_files:
            yield Unfit(
                key="trust_system_authorities",
                reason="then no certificate is trusted; give trusted_ca_files",
            )
        names = [each.server_name for each in self.trusted_key_servers]
        if len(set(names)) < len(names):
            yield Unfit(key="trusted_key_servers", reason="a server appears twice")

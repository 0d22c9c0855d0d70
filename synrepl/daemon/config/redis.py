"""The ``redis`` section of the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from synrepl.core.loopback import LOOPBACK, first_remote_host
from synrepl.daemon.config import values
from synrepl.daemon.config.decode import Section, Unfit


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSentinelConfig(Section):
    """A sentinel, which knows the address of a service's master."""

    host: str = LOOPBACK
    port: values.RemotePort = 26379


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisConfig(Section):
    """The Redis server that serves as bus between processes.

    :ivar path: its unix socket, instead of ``host`` and ``port``
    :ivar sentinels: sentinels that know the master, instead of ``host`` and ``port``
    :ivar service: the name under which the sentinels monitor the master
    :ivar username: ACL user; requires a password
    :ivar ca_file: PEM file with the certificates to trust with ``tls``; None for the system's
    :ivar channel_per_stream: publish rows and positions on one channel per stream, to which
        no process of a real Synapse subscribes
    :ivar insecure: the operator accepts plain text to another machine
    """

    host: str = LOOPBACK
    port: values.RemotePort = 6379
    path: values.File | None = None
    sentinels: tuple[RedisSentinelConfig, ...] = ()
    service: str | None = None
    sentinel_password: values.SecretFile | None = field(
        default=None, metadata={"key": "sentinel_password_path"}
    )
    username: str | None = None
    password: values.SecretFile | None = field(default=None, metadata={"key": "password_path"})
    database: values.RedisDatabase = 0
    tls: bool = False
    ca_file: values.File | None = None
    channel_per_stream: bool = False
    insecure: bool = False

    @property
    def where(self) -> str:
        """The address for display; without secrets."""
        if self.path is not None:
            return str(self.path)
        return self.service or f"{self.host}:{self.port}"

    def faults(self) -> Iterator[Unfit]:
        if self.username is not None and self.password is None:
            yield Unfit(key="password_path", reason="required with 'username'")
        if self.ca_file is not None and not self.tls:
            yield Unfit(key="ca_file", reason="means nothing without 'tls: true'")
        if self.path is not None and self.tls:
            yield Unfit(key="tls", reason="a unix socket has none")
        if self.path is not None and self.sentinels:
            yield Unfit(key="sentinels", reason="mean nothing with 'path'")
        if bool(self.sentinels) != (self.service is not None):
            yield Unfit(key="service", reason="'sentinels' and 'service' need each other")
        hosts = [sentinel.host for sentinel in self.sentinels] or [self.host]
        elsewhere = None if self.path is not None else first_remote_host(hosts)
        if elsewhere is not None and not (self.tls or self.insecure):
            yield Unfit(
                key="tls",
                reason=f"{elsewhere!r} is another machine: use 'tls: true', "
                "or accept plain text by 'insecure: true'",
            )

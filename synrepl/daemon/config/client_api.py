"""The ``client_api`` section of ``rooms``: a listener for Matrix clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from synrepl.core.loopback import LOOPBACK, is_loopback
from synrepl.daemon.config import values
from synrepl.daemon.config.decode import Section, Unfit
from synrepl.rooms import UnknownRoomVersion, room_version
from synrepl.services.rooms.sending.new_room import DEFAULT_ROOM_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitConfig(Section):
    """A rate limit.

    :ivar per_second: requests in a second, in the long run
    :ivar burst: requests at once, after a pause
    """

    per_second: values.Count
    burst: values.Count


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitsConfig(Section):
    """The rate limits of Matrix clients.

    :ivar logins: of an address without an access token, or with a wrong one
    :ivar requests: of a user
    :ivar writes: of a user, for requests that change something
    """

    logins: RateLimitConfig = field(default_factory=lambda: RateLimitConfig(per_second=1, burst=20))
    requests: RateLimitConfig = field(
        default_factory=lambda: RateLimitConfig(per_second=100, burst=500)
    )
    writes: RateLimitConfig = field(
        default_factory=lambda: RateLimitConfig(per_second=20, burst=100)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientApiConfig(Section):
    """A listener for Matrix clients.

    :ivar users: file with the users and their passwords; None for ``users.yaml`` in ``data_dir``
    :ivar checker: class that decides who may log in, instead of ``users``
    :ivar checker_config: its keyword arguments
    :ivar default_room_version: of rooms whose creators do not choose one
    :ivar news: what decides whether anything is new for a user: the last changes of rooms and users, or a list for
        each user; see docs/adr/0026-what-is-new-for-a-user.md
    :ivar max_body: maximum size of a request body, in bytes
    :ivar max_waiting: maximum number of requests that wait for news
    :ivar max_connections: maximum number of connections; ``max_connections_per_address`` from one address, which
        is that of a proxy if there is one
    :ivar x_forwarded: the listener is behind a proxy, which says in ``X-Forwarded-For`` what address a client has
    """

    port: values.Port = 8008
    bind_address: str = LOOPBACK
    users: values.File | None = None
    checker: values.ObjectPath | None = None
    checker_config: Mapping[str, Any] = field(default_factory=dict)
    default_room_version: str = DEFAULT_ROOM_VERSION
    news: Literal["changes", "lists"] = "changes"
    max_body: values.Size = 2**20
    max_waiting: values.Count = 10_000
    max_connections: values.Count = 12_000
    max_connections_per_address: values.Count = 12_000
    rate_limits: RateLimitsConfig = field(default_factory=RateLimitsConfig)
    x_forwarded: bool = False
    insecure: bool = False

    def faults(self) -> Iterator[Unfit]:
        if not self.insecure and not is_loopback(self.bind_address):
            yield Unfit(
                key="bind_address",
                reason=f"{self.bind_address!r} can be reached from other machines, and TLS is not built "
                "yet; bind to 127.0.0.1 behind a proxy, or accept plain text by 'insecure: true'",
            )
        if self.users is not None and self.checker is not None:
            yield Unfit(key="checker", reason="give either users or checker")
        if self.checker is None and self.checker_config:
            yield Unfit(key="checker_config", reason="it is for a checker; name one")
        try:
            room_version(self.default_room_version)
        except UnknownRoomVersion as error:
            yield Unfit(key="default_room_version", reason=error)

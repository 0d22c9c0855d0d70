"""What the parts of a simulated server need of it."""

from __future__ import annotations

from typing import Protocol

from simulator.federation.hosted_room import HostedRoom
from simulator.federation.in_memory import InMemoryFederation
from simulator.federation.outgoing import OutgoingEvents
from synrepl.rooms import Event, EventBuilder


class RoomHost(Protocol):
    """A server with rooms; see :class:`~simulator.federation.pure_server.PureServer`."""

    @property
    def name(self) -> str: ...

    @property
    def federation(self) -> InMemoryFederation: ...

    @property
    def rooms(self) -> dict[str, HostedRoom]: ...

    @property
    def outgoing(self) -> OutgoingEvents: ...

    @property
    def invites(self) -> list[Event]: ...

    def now_ms(self) -> int: ...

    def builder(self, version: str, server: str | None = None) -> EventBuilder: ...

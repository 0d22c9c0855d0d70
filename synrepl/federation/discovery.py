"""Server discovery: from the name of a server to where it is, whose certificate it has and what it is asked as.

:func:`discover` says what has to be looked up next, and is sent what was found; it does no I/O. Names are what requests
are signed with, whatever discovery finds.

Source: https://spec.matrix.org/v1.16/server-server-api/#resolving-server-names
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple

from synrepl.core import jsons
from synrepl.core.errors import InputError
from synrepl.core.jsons import BadJson
from synrepl.core.retry import RandomSource
from synrepl.federation.server_names import (
    HostPort,
    ServerAddress,
    UnusableServerName,
    parse_server_name,
)

DEFAULT_PORT = 8448

#: SRV records are looked up under these names, the second of which is deprecated.
SERVICES = ("_matrix-fed._tcp", "_matrix._tcp")

#: Maximum number of SRV records that are used.
MAX_RECORDS = 20

#: Maximum size of a ``.well-known`` document, in bytes.
MAX_WELL_KNOWN = 50 * 2**10

WELL_KNOWN_PATH = "/.well-known/matrix/server"


class NoSuchService(InputError):
    """the DNS has an SRV record for {service} which says that there is no such server"""


class BadWellKnown(InputError):
    """the document at {host}/.well-known/matrix/server is not acceptable: {reason}"""


class ServerRoute(NamedTuple):
    """How a server is reached.

    :ivar host_header: what it is asked as
    :ivar certificate_name: the host name or address that its certificate must have
    :ivar places: where to connect to, the best first
    """

    host_header: str
    certificate_name: str
    places: tuple[HostPort, ...]


class WellKnownNeeded(NamedTuple):
    """A look-up of what a host delegates to; answered by its server name, or None if it does not delegate."""

    host: str


class ServiceNeeded(NamedTuple):
    """A look-up of SRV records; answered by them, none if there are none."""

    service: str


class ServiceRecord(NamedTuple):
    """An SRV record (RFC 2782)."""

    priority: int
    weight: int
    target: str
    port: int


DiscoveryStep = WellKnownNeeded | ServiceNeeded

#: Yields what is needed next, is sent it, and returns the result.
Discovery = Generator[DiscoveryStep, Any, ServerRoute]


def discover(server_name: str, random: RandomSource) -> Discovery:
    """Find out how a server is reached.

    :param random: chooses among SRV records
    :raises UnusableServerName: :raises NoSuchService:
    """
    named = parse_server_name(server_name)
    if not named.is_literal and named.port is None:
        delegated: str | None = yield WellKnownNeeded(named.host)
        if delegated is not None:
            named = parse_server_name(delegated)
    if named.is_literal or named.port is not None:
        return _route(named, (HostPort(named.host, named.port or DEFAULT_PORT),))
    for service in SERVICES:
        name = f"{service}.{named.host}"
        records: Sequence[ServiceRecord] = yield ServiceNeeded(name)
        if records:
            return _route(named, _places(name, records, random))
    return _route(named, (HostPort(named.host, DEFAULT_PORT),))


def _route(named: ServerAddress, places: tuple[HostPort, ...]) -> ServerRoute:
    return ServerRoute(named.text, named.host, places)


def _places(
    service: str, records: Sequence[ServiceRecord], random: RandomSource
) -> tuple[HostPort, ...]:
    """Where the records lead, in order.

    :raises NoSuchService: nowhere
    """
    found = tuple(
        HostPort(record.target.removesuffix("."), record.port)
        for record in order_records(records[:MAX_RECORDS], random)
        if record.target not in ("", ".") and record.port
    )
    if not found:
        raise NoSuchService(service=service)
    return found


def order_records(records: Iterable[ServiceRecord], random: RandomSource) -> list[ServiceRecord]:
    """Order SRV records: by priority, and at random among those of one priority, by their weights."""
    by_priority: dict[int, list[ServiceRecord]] = {}
    for record in records:
        by_priority.setdefault(record.priority, []).append(record)
    ordered = []
    for priority in sorted(by_priority):
        # Those without weight come first, so that they have a small chance.
        left = sorted(by_priority[priority], key=lambda record: record.weight > 0)
        while left:
            mark = random() * sum(record.weight for record in left)
            for index, record in enumerate(left):
                mark -= record.weight
                if mark <= 0 or index == len(left) - 1:
                    ordered.append(left.pop(index))
                    break
    return ordered


def run_discovery(discovery: Discovery, answer: Callable[[DiscoveryStep], object]) -> ServerRoute:
    """Run a discovery with answers that are known.

    :raises UnusableServerName: :raises NoSuchService:
    """
    found: object = None
    while True:
        try:
            step = discovery.send(found)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        found = answer(step)


def delegated_name(body: bytes, host: str) -> str:
    """The server name in a ``.well-known`` document.

    :param host: whose document it is
    :raises BadWellKnown: it is no such document
    """
    try:
        document = jsons.decode(body, "it")
    except BadJson as error:
        raise BadWellKnown(host=host, reason=error) from None
    name = document.get("m.server") if isinstance(document, dict) else None
    if not isinstance(name, str):
        raise BadWellKnown(host=host, reason="it has no text 'm.server'")
    try:
        parse_server_name(name)
    except UnusableServerName as error:
        raise BadWellKnown(host=host, reason=error) from None
    return name

"""Verifies events from other servers: their form, signatures and hashes (checks 1 to 3).

Two thirds of the time are libsodium's, which needs no lock of the interpreter; so events are checked in threads, in
slices that are short enough for the reactor's thread to come in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from synrepl.core.clock import Scheduler
from synrepl.core.concurrent import map_concurrently
from synrepl.core.log import Logger
from synrepl.federation.published_keys import LONGEST_VALIDITY_MS
from synrepl.rooms import (
    BadEvent,
    BadIdentifier,
    Event,
    Keys,
    ReceiptResult,
    ReceiptVerdict,
    RoomVersion,
    check_received_event,
    dropped_on_receipt,
    parse_received_event,
    signing_servers,
)
from synrepl.services.federation.interfaces import RunsInThreads

#: Number of events in a slice.
SLICE = 100

#: Maximum number of signatures of a server whose keys are fetched for an event; one is enough.
MAX_SIGNATURES = 5

T = TypeVar("T")
R = TypeVar("R")


#: Which of some events are wanted, by ID.
ChoosesEvents = Callable[[Collection[str]], Awaitable[Collection[str]]]


class KnowsKeys(Protocol):
    """Knows the keys of servers; see :class:`.ServerKeyRing`."""

    async def known(self, servers: Collection[str]) -> Keys: ...

    async def for_events(self, wanted: Mapping[str, Mapping[str, int]]) -> Keys: ...


class _Parsed(NamedTuple):
    """Events of a slice that have passed check 1, else their results; and the servers that must have signed them."""

    events: list[Event | ReceiptResult]
    servers: set[str]


class EventVerifier:
    """Verifies events with keys that are fetched as needed.

    :ivar verified: number of events that were verified
    :ivar dropped: number of them that were dropped
    """

    def __init__(
        self, scheduler: Scheduler, keys: KnowsKeys, threads: RunsInThreads, log: Logger
    ) -> None:
        self._scheduler = scheduler
        self._keys = keys
        self._threads = threads
        self._log = log
        self.verified = 0
        self.dropped = 0

    async def verify(
        self,
        raws: Sequence[bytes],
        version: RoomVersion,
        *,
        origin: str | None = None,
        choose: ChoosesEvents | None = None,
    ) -> Sequence[ReceiptResult]:
        """Checks 1 to 3 of events, in order.

        :param origin: the server that sent them, for logs
        :param choose: gets the IDs of those that pass check 1, and returns those that are wanted; there are no
            results of the others
        """
        parsed = await self._in_slices(partial(_parse, version), raws)
        events = [event for part in parsed for event in part.events]
        if choose is not None:
            wanted = await choose({each.event_id for each in events if isinstance(each, Event)})
            events = [
                each for each in events if not isinstance(each, Event) or each.event_id in wanted
            ]
        servers = set[str]().union(*(part.servers for part in parsed))
        results = await self._check(events, await self._keys.known(servers))
        again = [number for number, result in enumerate(results) if result.needs_keys]
        if again:
            doubtful = [events[number] for number in again]
            await self._keys.for_events(self._wanted(doubtful))
            checked = await self._check(doubtful, await self._keys.known(servers))
            for number, result in zip(again, checked, strict=True):
                results[number] = result
        self._count(results, origin)
        return results

    async def _check(
        self, events: Sequence[Event | ReceiptResult], keys: Keys
    ) -> list[ReceiptResult]:
        parts = await self._in_slices(partial(_check, keys), events)
        return [result for part in parts for result in part]

    async def _in_slices(self, work: Callable[[Sequence[T]], R], items: Sequence[T]) -> list[R]:
        """The results of work on slices of some items, in order."""
        slices = [items[at : at + SLICE] for at in range(0, len(items), SLICE)]

        async def run(part: Sequence[T]) -> R:
            return await self._threads.run(partial(work, part))

        return await map_concurrently(self._scheduler, run, slices, self._threads.concurrency)

    def _wanted(self, events: Iterable[Event | ReceiptResult]) -> dict[str, dict[str, int]]:
        """The keys with which events were signed, with the times at which they must have been valid."""
        latest = int(self._scheduler.seconds() * 1000) + LONGEST_VALIDITY_MS
        wanted: dict[str, dict[str, int]] = {}
        for event in events:
            assert isinstance(event, Event)  # others need no keys
            at = event.origin_server_ts if event.version.enforces_key_validity else 0
            if at > latest:
                continue  # no key will have been valid
            for server in signing_servers(event):
                signatures = event.signatures.get(server)
                if isinstance(signatures, dict):
                    keys = wanted.setdefault(server, {})
                    for key_id in islice(signatures, MAX_SIGNATURES):
                        keys[key_id] = max(keys.get(key_id, 0), at)
        return wanted

    def _count(self, results: Sequence[ReceiptResult], origin: str | None) -> None:
        self.verified += len(results)
        dropped = [result for result in results if result.verdict is ReceiptVerdict.DROP]
        self.dropped += len(dropped)
        if dropped:
            self._log.info(
                "{count} of {number} events from {origin} are dropped, such as: {reason}",
                count=len(dropped),
                number=len(results),
                origin=origin or "several servers",
                reason=dropped[0].refusal and dropped[0].refusal.sentence[:300],
            )


def _parse(version: RoomVersion, raws: Sequence[bytes]) -> _Parsed:
    parsed = _Parsed([], set())
    for raw in raws:
        try:
            event = parse_received_event(raw, version)
        except (BadEvent, BadIdentifier) as error:
            parsed.events.append(dropped_on_receipt(error))
            continue
        parsed.events.append(event)
        with suppress(BadIdentifier):  # check 2 refuses it
            parsed.servers.update(signing_servers(event))
    return parsed


def _check(keys: Keys, events: Sequence[Event | ReceiptResult]) -> list[ReceiptResult]:
    return [
        check_received_event(event, keys) if isinstance(event, Event) else event for event in events
    ]

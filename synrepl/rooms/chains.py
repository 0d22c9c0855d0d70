"""Auth chains: what events depend on, and what follows for the states that they are part of.

The auth chain of an event is all that it cites in ``auth_events``, all that those cite, and so on
("Auth chain" of https://spec.matrix.org/v1.16/rooms/v2/#definitions). Where the room's ID is the hash of
its ``m.room.create``, that event is part of every chain though nobody cites it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import reduce
from itertools import compress, islice
from operator import or_
from typing import Protocol

from synrepl.core.errors import InputError
from synrepl.rooms.auth.keys import POWER_LEVELS_KEY
from synrepl.rooms.event import Event

#: How many shared events are looked at before it is seen whether that is enough.
_AT_ONCE = 64

#: Up to how many bits it is quicker to look for each than to look at all places.
_FEW = 32

#: Reads one event by its ID; ``KeyError`` when there is none, which becomes a named error.
Fetch = Callable[[str], Event]


class MissingAuthEvent(InputError):
    """event {event_id} depends on {cited}, which is not known"""


class UnknownEvent(InputError):
    """event {event_id} is not known"""


class AuthCycle(InputError):
    """event {event_id} is part of its own auth chain"""


class AuthChains(Protocol):
    """Answers about auth chains of one room's events, from memory or from a store."""

    @property
    def power_levels(self) -> Mapping[str, str | None]:
        """Of each ``m.room.power_levels`` of the room, the one that it cites itself, if any."""
        ...

    def difference(self, differing: Sequence[Collection[str]], shared: Iterable[str]) -> set[str]:
        """Events that are in the full auth chains of some states, and not of all ("Auth difference").

        An event of a state counts as part of that state's chain, as the reference has it
        (docs/adr/0014-state-resolution.md).

        :param differing: of each state (at least one), the events that are not in all the states
        :param shared: the events that are in all of them; read only as far as needed
        :raises UnknownEvent: one of them is not known
        """
        ...

    def subgraph(self, conflicted: Collection[str]) -> set[str]:
        """These events, and all on a path of citations from one of them to another.

        "Conflicted state subgraph" of https://spec.matrix.org/v1.16/rooms/v12/#definitions.

        :raises UnknownEvent: one of them is not known
        """
        ...


def depends_on(event: Event) -> tuple[str, ...]:
    """What an event cites, and its room's ``m.room.create`` where that goes without saying."""
    cited = event.auth_event_ids
    if event.version.room_id_is_create_hash and not event.is_create:
        return (*cited, create_id(event))
    return cited


def cited_levels(event: Event, power_levels: Container[str]) -> str | None:
    """The ``m.room.power_levels`` that an event cites.

    :param power_levels: the IDs of all in the room
    """
    for event_id in event.auth_event_ids:
        if event_id in power_levels:
            return event_id
    return None


def create_id(event: Event) -> str:
    """The ID of the ``m.room.create`` of an event's room, where the room's ID tells it."""
    return "$" + event.room_id[1:]


class BitSetChains:
    """Auth chains in memory: each is one integer with a bit for every event in it.

    Only an event that somebody cites gets a bit, and events that cite the same share one integer:
    most state events of a room are cited by nobody, and many cite the same, so that a chain is
    far shorter than the room.

    Bits are given in the order in which events are cited first, so what depends on an event
    has a higher one.
    """

    __slots__ = ("_bit", "_by_bit", "_by_cited", "_chain", "_power_levels")

    def __init__(self, events: Iterable[Event] = ()) -> None:
        """:param events: to begin with, those that are depended on first"""
        self._chain: dict[str, int] = {}
        self._by_cited: dict[tuple[str, ...], int] = {(): 0}
        self._bit: dict[str, int] = {}
        self._by_bit: list[str] = []
        self._power_levels: dict[str, str | None] = {}
        for event in events:
            self.add(event)

    def __contains__(self, event_id: str) -> bool:
        return event_id in self._chain

    def __len__(self) -> int:
        return len(self._chain)

    def add(self, event: Event) -> None:
        """Take in an event, unless it is known.

        :raises MissingAuthEvent: something that it depends on is not known
        """
        if event.event_id not in self._chain:
            cited = depends_on(event)
            chain = self._by_cited.get(cited)
            if chain is None:
                chain = self._by_cited[cited] = self._union(event.event_id, cited)
            self._chain[event.event_id] = chain
            if (event.type, event.state_key) == POWER_LEVELS_KEY:
                self._power_levels[event.event_id] = cited_levels(event, self._power_levels)

    def _union(self, event_id: str, cited: tuple[str, ...]) -> int:
        missing = [each for each in cited if each not in self._chain]
        if missing:
            raise MissingAuthEvent(event_id=event_id, cited=missing[0])
        union = 0
        for each in cited:
            bit = self._bit.get(each)
            if bit is None:
                bit = self._bit[each] = 1 << len(self._by_bit)
                self._by_bit.append(each)
            union |= self._chain[each] | bit
        return union

    @property
    def power_levels(self) -> Mapping[str, str | None]:
        """See :attr:`AuthChains.power_levels`."""
        return self._power_levels

    def chain(self, event_id: str) -> set[str]:
        """The auth chain of an event, without itself.

        :raises UnknownEvent: the event is not known
        """
        return set(self._events(self._chains_of([event_id])))

    def difference(self, differing: Sequence[Collection[str]], shared: Iterable[str]) -> set[str]:
        """See :meth:`AuthChains.difference`."""
        chains = [self._chains_of(events) | self._bits_of(events) for events in differing]
        in_some = reduce(or_, chains, 0)
        rest = in_some & ~reduce(int.__and__, chains, in_some)
        # What nobody cites is in no chain but those of the states that have it.
        found = set().union(*differing).difference(self._bit)
        remaining, seen = iter(shared), []
        while rest and (some := list(islice(remaining, _AT_ONCE))):
            rest &= ~self._chains_of(some)
            seen += some
        found.update(self._events(rest))
        found.difference_update(seen)
        return found

    def subgraph(self, conflicted: Collection[str]) -> set[str]:
        """See :meth:`AuthChains.subgraph`."""
        found = set(conflicted)
        below, ends = self._chains_of(found), self._bits_of(found)
        if ends:
            # What is older than all of the ends has none of them in its chain.
            oldest = (ends & -ends).bit_length()
            chains = self._chain
            found.update(
                event_id
                for event_id in self._events((below & ~ends) >> oldest << oldest)
                if chains[event_id] & ends
            )
        return found

    def _chains_of(self, events: Iterable[str]) -> int:
        """The chains of several, together."""
        try:
            return reduce(or_, map(self._chain.__getitem__, events), 0)
        except KeyError as error:
            raise UnknownEvent(event_id=error.args[0]) from None

    def _bits_of(self, events: Iterable[str]) -> int:
        return reduce(or_, filter(None, map(self._bit.get, events)), 0)

    def _events(self, bits: int) -> Iterable[str]:
        """The events whose bits these are, oldest first."""
        if bits.bit_count() < _FEW:
            few = []
            while bits:
                lowest = bits & -bits
                few.append(self._by_bit[lowest.bit_length() - 1])
                bits ^= lowest
            return few
        # As text: "1" for each that is in it, from the lowest bit on.
        digits = bin(bits)[:1:-1].encode().translate(_SELECTORS)
        return compress(self._by_bit, digits)


#: From the digits of a binary number to what :func:`itertools.compress` takes.
_SELECTORS = bytes.maketrans(b"01", b"\0\1")


def chains_of(starts: Iterable[str], fetch: Fetch) -> BitSetChains:
    """The auth chains of some events, read from where the events are.

    Whoever resolves often keeps a :class:`BitSetChains` up to date instead.

    :raises UnknownEvent: one of ``starts`` is not there
    :raises MissingAuthEvent: something that one of them depends on, near or far, is not there
    :raises AuthCycle: events depend on one another (possible only where IDs are made up by servers)
    """
    chains = BitSetChains()
    for start in starts:
        if start not in chains:
            _add_with_chain(chains, start, fetch)
    return chains


def _add_with_chain(chains: BitSetChains, start: str, fetch: Fetch) -> None:
    try:
        path = [fetch(start)]
    except KeyError:
        raise UnknownEvent(event_id=start) from None
    under_way = {start}
    while path:
        event = path[-1]
        cited = next((each for each in depends_on(event) if each not in chains), None)
        if cited is None:
            chains.add(event)
            under_way.discard(event.event_id)
            path.pop()
        elif cited in under_way:
            raise AuthCycle(event_id=cited)
        else:
            under_way.add(cited)
            try:
                path.append(fetch(cited))
            except KeyError:
                raise MissingAuthEvent(event_id=event.event_id, cited=cited) from None

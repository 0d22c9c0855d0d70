"""Auth chains, the auth difference and the conflicted state subgraph.

The auth chain of an event consists of its auth events, their auth events, and so on
("Auth chain" of https://spec.matrix.org/v1.16/rooms/v2/#definitions). Where the room ID is the hash of
``m.room.create``, that event is part of every chain although ``auth_events`` do not name it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from functools import reduce
from itertools import compress, islice
from operator import or_
from typing import Protocol

from synrepl.core.errors import InputError
from synrepl.rooms.differing import DifferingEvents, bits_of_some, events_of_some
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import CREATE, JOIN_RULES, POWER_LEVELS, POWER_LEVELS_KEY

#: Shared events processed between two checks of whether the result is complete.
_BATCH = 64

#: Up to this many set bits, finding each is quicker than scanning all positions.
_SPARSE = 32

#: Until this many events of a room have a bit, every auth event gets one. This bounds a chain's bits to
#: 512 bytes, apart from the events that get bits later.
BITS_FOR_ALL = 4096

#: Types of events that are in nearly every auth chain.
_RULE_TYPES = frozenset({CREATE, POWER_LEVELS, JOIN_RULES})

#: Reads an event by its ID; a ``KeyError`` becomes a named error.
Fetch = Callable[[str], Event]


class MissingAuthEvent(InputError):
    """event {event_id} depends on {cited}, which is not known"""


class UnknownEvent(InputError):
    """event {event_id} is not known"""


class AuthCycle(InputError):
    """event {event_id} is part of its own auth chain"""


class AuthChains(Protocol):
    """Queries on the auth chains of one room, answered from memory or from a store."""

    @property
    def power_levels(self) -> Mapping[str, str | None]:
        """For each ``m.room.power_levels`` of the room, the one among its auth events, if any."""
        ...

    def difference(self, differing: DifferingEvents, shared: Iterable[str]) -> set[str]:
        """The auth difference: events in the full auth chains of some states, but not of all.

        An event of a state counts as part of that state's full auth chain, as in Synapse
        (docs/adr/0014-state-resolution.md).

        :param differing: for each state, its events that are not in all states
        :param shared: the events that are in all states; consumed only as far as needed
        :raises UnknownEvent: one of them is not known
        """
        ...

    def subgraph(self, conflicted: Collection[str]) -> set[str]:
        """These events, and all events on an auth chain path from one of them to another.

        "Conflicted state subgraph" of https://spec.matrix.org/v1.16/rooms/v12/#definitions.

        :raises UnknownEvent: one of them is not known
        """
        ...


def auth_dependencies(event: Event) -> tuple[str, ...]:
    """The auth events of an event, including ``m.room.create`` where the room ID implies it."""
    cited = event.auth_event_ids
    if event.version.room_id_is_create_hash and not event.is_create:
        return (*cited, create_id(event))
    return cited


def cited_power_levels(event: Event, power_levels: Container[str]) -> str | None:
    """The ``m.room.power_levels`` among the auth events of an event.

    :param power_levels: the IDs of all such events in the room
    """
    for event_id in event.auth_event_ids:
        if event_id in power_levels:
            return event_id
    return None


def create_id(event: Event) -> str:
    """The ID of ``m.room.create``, in versions where the room ID contains it."""
    return "$" + event.room_id[1:]


class BitSetChains:
    """Auth chains in memory.

    The first few thousand auth events have a bit each, and the part of a chain that consists of such
    events is one integer, shared by all events with the same auth events. Most rooms need no more. In
    a larger room, from then on only ``m.room.create``, power levels, join rules and their own auth
    chains get a bit, because nearly every chain contains them. Other auth events, mostly an earlier
    membership of the same user, are kept as references and followed when a query needs them. So
    memory grows linearly with the number of events, however often members leave and rejoin.

    Bits are assigned in dependency order: an event has a higher bit than its auth events, and the
    whole auth chain of an event with a bit has bits.
    """

    __slots__ = (
        "_bit_index",
        "_bits",
        "_bits_for_all",
        "_by_bit",
        "_cited",
        "_interned",
        "_power_levels",
        "_references",
        "_rules",
    )

    def __init__(self, events: Iterable[Event] = (), bits_for_all: int = BITS_FOR_ALL) -> None:
        """
        :param events: initial events, auth events before those that refer to them
        :param bits_for_all: until this many events have a bit, every auth event gets one
        """
        self._bits_for_all = bits_for_all
        #: By event: the part of its chain reached through events with a bit only.
        self._bits: dict[str, int] = {}
        #: By event: those of its auth events that have no bit.
        self._references: dict[str, tuple[str, ...]] = {}
        self._bit_index: dict[str, int] = {}
        self._by_bit: list[str] = []
        #: Chain bits by auth events; only the auth events that have a bit.
        self._interned: dict[tuple[str, ...], int] = {(): 0}
        #: Events that get a bit as soon as they are somebody's auth event.
        self._rules: set[str] = set()
        #: Events without a bit in the auth chain of a state event.
        self._cited: set[str] = set()
        self._power_levels: dict[str, str | None] = {}
        for event in events:
            self.add(event)

    def __contains__(self, event_id: str) -> bool:
        return event_id in self._bits

    def __len__(self) -> int:
        return len(self._bits)

    def add(self, event: Event) -> None:
        """Add an event, unless it is known.

        :raises MissingAuthEvent: one of its auth events is not known
        """
        event_id = event.event_id
        if event_id in self._bits:
            return
        cited = auth_dependencies(event)
        bits = self._interned.get(cited)
        if bits is None:
            bits = self._add_citing(event, cited)
        self._bits[event_id] = bits
        if event.type in _RULE_TYPES:
            self._rules.add(event_id)
            if (event.type, event.state_key) == POWER_LEVELS_KEY:
                self._power_levels[event_id] = cited_power_levels(event, self._power_levels)

    def _add_citing(self, event: Event, cited: tuple[str, ...]) -> int:
        """Assign bits to the auth events that are due one, and keep the others as references.

        :returns: the bits of the event's chain
        """
        bit_index = self._bit_index
        for each in cited:
            if each not in self._bits:
                raise MissingAuthEvent(event_id=event.event_id, cited=each)
        for each in cited:
            if each not in bit_index and (
                each in self._rules or len(self._by_bit) < self._bits_for_all
            ):
                self._give_bits(each)
        with_bit = tuple([each for each in cited if each in bit_index])
        bits = self._interned.get(with_bit)
        if bits is None:
            bits = self._interned[with_bit] = self._union(with_bit)
        if len(with_bit) < len(cited):
            rest = tuple([each for each in cited if each not in bit_index])
            self._references[event.event_id] = rest
            if event.state_key is not None:
                self._mark_cited(rest)
        return bits

    def _union(self, with_bit: Iterable[str]) -> int:
        union = 0
        for each in with_bit:
            union |= self._bits[each] | 1 << self._bit_index[each]
        return union

    def _give_bits(self, event_id: str) -> None:
        """Assign a bit to an event, after assigning bits to those of its chain that have none."""
        for each in self._in_order([event_id]):
            self._bits[each] |= self._union(self._references.pop(each, ()))
            self._bit_index[each] = len(self._by_bit)
            self._by_bit.append(each)
            self._cited.discard(each)

    def _mark_cited(self, event_ids: Iterable[str]) -> None:
        """Record that these events, and their auth chains, are in the chain of a state event."""
        ahead = list(event_ids)
        while ahead:
            each = ahead.pop()
            if each not in self._cited and each not in self._bit_index:
                self._cited.add(each)
                ahead.extend(self._references.get(each, ()))

    def _in_order(self, starts: Iterable[str]) -> list[str]:
        """These events and their chains, without those that have a bit; auth events come first."""
        ordered: list[str] = []
        seen: set[str] = set()
        path = [(each, False) for each in starts]
        while path:
            each, is_done = path.pop()
            if is_done:
                ordered.append(each)
            elif each not in seen and each not in self._bit_index:
                seen.add(each)
                path.append((each, True))
                path.extend([(cited, False) for cited in self._references.get(each, ())])
        return ordered

    @property
    def bit_count(self) -> int:
        """Number of events with a bit, which is what the size of a chain grows with."""
        return len(self._by_bit)

    @property
    def power_levels(self) -> Mapping[str, str | None]:
        """See :attr:`AuthChains.power_levels`."""
        return self._power_levels

    def chain(self, event_id: str) -> set[str]:
        """The auth chain of an event, without the event itself.

        :raises UnknownEvent: the event is not known
        """
        others: set[str] = set()
        bits = self._below([event_id], others)
        return others.union(self._events(bits))

    def difference(self, differing: DifferingEvents, shared: Iterable[str]) -> set[str]:
        """See :meth:`AuthChains.difference`."""
        full, ordered = self._fulls(differing.events())
        rest = bits_of_some(differing, full)
        found = events_of_some(differing, ordered, self._references)
        remaining, looked_at, seen = iter(shared), list[str](), set[str]()
        # An event in no state event's chain cannot be removed by a shared event.
        while rest or not found.isdisjoint(self._cited):
            some = list(islice(remaining, _BATCH))
            if not some:
                break
            rest &= ~self._below(some, seen)
            looked_at += some
            if found:
                found.difference_update(some, seen)
        found.update(self._events(rest))
        found.difference_update(looked_at)
        return found

    def subgraph(self, conflicted: Collection[str]) -> set[str]:
        """See :meth:`AuthChains.subgraph`."""
        found, others = set(conflicted), set[str]()
        below = self._below(found, others)
        ends = self._own_bits(found)
        if ends:
            # An event older than all conflicted events has none of them in its chain.
            oldest = (ends & -ends).bit_length()
            candidates = self._events((below & ~ends) >> oldest << oldest)
            found.update([each for each in candidates if self._bits[each] & ends])
        return found | self._reaching(conflicted, ends) & others if others else found

    def _reaching(self, conflicted: Collection[str], ends: int) -> set[str]:
        """Events without a bit, in the chains of ``conflicted``, whose own chain contains one of those.

        :param ends: the bits of ``conflicted``
        """
        goals = set(conflicted)
        reaching: set[str] = set()
        for each in self._in_order(goals):
            bits, hit = self._bits[each], False
            for cited in self._references.get(each, ()):
                bit_index = self._bit_index.get(cited)
                if bit_index is not None:
                    bits |= self._bits[cited] | 1 << bit_index
                elif cited in goals or cited in reaching:
                    hit = True
            if hit or bits & ends:
                reaching.add(each)
        return reaching

    def _below(self, starts: Collection[str], others: set[str]) -> int:
        """The union of the auth chains of some events: bits, and the events without a bit.

        :param others: the latter are added to it; events that are already in it are not followed
        :raises UnknownEvent: one of ``starts`` is not known
        """
        all_bits, references, bit_index = self._bits, self._references, self._bit_index
        try:
            bits = reduce(or_, map(all_bits.__getitem__, starts), 0)
        except KeyError as error:
            raise UnknownEvent(event_id=error.args[0]) from None
        if not references:
            return bits
        ahead = [references[each] for each in starts if each in references]
        while ahead:
            for cited in ahead.pop():
                if cited in bit_index:
                    bits |= all_bits[cited] | 1 << bit_index[cited]
                elif cited not in others:
                    others.add(cited)
                    bits |= all_bits[cited]
                    if cited in references:
                        ahead.append(references[cited])
        return bits

    def _fulls(self, events: Collection[str]) -> tuple[dict[str, int], list[str]]:
        """The bits of events with their auth chains; and all without a bit, auth events first.

        :raises UnknownEvent: one of ``events`` is not known
        """
        all_bits, bit_index, full = self._bits, self._bit_index, dict[str, int]()
        for each in events:
            if each not in all_bits:
                raise UnknownEvent(event_id=each)
            if each in bit_index:
                full[each] = all_bits[each] | 1 << bit_index[each]
        ordered = self._in_order(events)
        for each in ordered:
            bits = all_bits[each]
            for cited in self._references.get(each, ()):
                own = bit_index.get(cited)
                bits |= full[cited] if own is None else all_bits[cited] | 1 << own
            full[each] = bits
        return full, ordered

    def _own_bits(self, events: Iterable[str]) -> int:
        bits, get = 0, self._bit_index.get
        for each in events:
            bit_index = get(each)
            if bit_index is not None:
                bits |= 1 << bit_index
        return bits

    def _events(self, bits: int) -> Iterable[str]:
        """The events whose bits these are, oldest first."""
        if bits.bit_count() < _SPARSE:
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

    Code that resolves often keeps a :class:`BitSetChains` up to date instead.

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
        cited = next((each for each in auth_dependencies(event) if each not in chains), None)
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

"""The events of a state and its auth chain, as another server sends them, in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class StateWithAuthChain(Protocol):
    """The state before an event with its auth chain; see :class:`.RoomStateAnswer`."""

    def state(self) -> Iterator[bytes]: ...

    def auth_chain(self) -> Iterator[bytes]: ...


class AnsweredPart(NamedTuple):
    """Some events of an answer.

    :ivar is_state: whether they are of the state; otherwise of its auth chain
    """

    is_state: bool
    raws: list[bytes]


def causes_first(answer: StateWithAuthChain, size: int) -> Iterator[AnsweredPart]:
    """All events in parts of a size, in an order in which few come before those that they cite.

    Most events cite the few that the room began with. Some servers send these in the auth chain, and others only in the
    state, at its beginning. Memberships cite earlier ones, which are in the auth chain.
    """
    begin = list(islice(answer.state(), size))
    if begin:
        yield AnsweredPart(True, begin)
    for raws in in_parts(answer.auth_chain(), size):
        yield AnsweredPart(False, raws)
    for raws in in_parts(islice(answer.state(), len(begin), None), size):
        yield AnsweredPart(True, raws)


def in_parts(items: Iterable[T], size: int) -> Iterable[list[T]]:
    """Items in lists of a size; the last one may be shorter."""
    part: list[T] = []
    for each in items:
        part.append(each)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part

"""Ways to pack the entries of a group into the columns of one row."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from benchmarks.room_shapes.histories import Change

#: Bits of an event number in a pair, which leaves 23 for the slot.
EVENT_BITS = 40
_EVENT_MASK = (1 << EVENT_BITS) - 1


class Packing(Protocol):
    """How entries become columns.

    :ivar name: what is shown
    :ivar columns: definitions of the columns
    """

    name: str
    columns: Mapping[str, str]

    def packed(self, change: Change) -> Sequence[object]:
        """The values of the columns."""

    def unpacked(self, values: Sequence[Any]) -> dict[int, int | None]:
        """The entries in the values of the columns."""


class ArrayPacking:
    """Three arrays: slots, events, and removed slots."""

    name = "arrays"
    columns: ClassVar = {"slots": "int[]", "event_nos": "bigint[]", "removed": "int[]"}

    def packed(self, change: Change) -> Sequence[object]:
        """See :class:`Packing`."""
        kept = sorted((slot, event) for slot, event in change.items() if event is not None)
        removed = sorted(slot for slot, event in change.items() if event is None)
        return [slot for slot, _ in kept], [event for _, event in kept], removed or None

    def unpacked(self, values: Sequence[Any]) -> dict[int, int | None]:
        """See :class:`Packing`."""
        slots, events, removed = values
        found: dict[int, int | None] = dict(zip(slots, events, strict=True))
        if removed:
            found.update(dict.fromkeys(removed))
        return found


class PairPacking:
    """One array of numbers, each with the slot in its upper bits and the event in its lower 40; 0 is removed."""

    name = "pairs"
    columns: ClassVar = {"changes": "bigint[]"}

    def packed(self, change: Change) -> Sequence[object]:
        """See :class:`Packing`."""
        return (sorted(slot << EVENT_BITS | (event or 0) for slot, event in change.items()),)

    def unpacked(self, values: Sequence[Any]) -> dict[int, int | None]:
        """See :class:`Packing`."""
        return {pair >> EVENT_BITS: pair & _EVENT_MASK or None for pair in values[0]}


class FixedBytePacking:
    """The same numbers as 8 bytes each, little-endian."""

    name = "fixed bytes"
    columns: ClassVar = {"changes": "bytea"}

    def packed(self, change: Change) -> Sequence[object]:
        """See :class:`Packing`."""
        pairs = sorted(slot << EVENT_BITS | (event or 0) for slot, event in change.items())
        return (array("q", pairs).tobytes(),)

    def unpacked(self, values: Sequence[Any]) -> dict[int, int | None]:
        """See :class:`Packing`."""
        pairs = array("q", bytes(values[0]))
        return {pair >> EVENT_BITS: pair & _EVENT_MASK or None for pair in pairs}


class VariableBytePacking:
    """Slots as differences to the one before, events as they are, in groups of 7 bits (LEB128); event 0 is removed."""

    name = "variable bytes"
    columns: ClassVar = {"changes": "bytea"}

    def packed(self, change: Change) -> Sequence[object]:
        """See :class:`Packing`."""
        found, before = bytearray(), 0
        for slot, event in sorted(change.items()):
            for number in slot - before, event or 0:
                rest = number
                while rest > 0x7F:
                    found.append(rest & 0x7F | 0x80)
                    rest >>= 7
                found.append(rest)
            before = slot
        return (bytes(found),)

    def unpacked(self, values: Sequence[Any]) -> dict[int, int | None]:
        """See :class:`Packing`."""
        found: dict[int, int | None] = {}
        number = shift = slot = 0
        is_slot = True
        for byte in bytes(values[0]):
            number |= (byte & 0x7F) << shift
            if byte & 0x80:
                shift += 7
                continue
            if is_slot:
                slot += number
            else:
                found[slot] = number or None
            is_slot, number, shift = not is_slot, 0, 0
        return found

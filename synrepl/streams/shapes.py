"""Wire shapes of rows: the JSON arrays that peers of each generation send.

Peers of a generation with fewer columns send fewer cells, and some generations use
another order. The types to decode, newest first, and the cells to send are derived
from the stream's definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import attrgetter, or_
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.row import Row

Reader = Callable[[bytes], Row]
Getter = Callable[[Row], object]

NEWEST_FIRST = tuple(reversed(Generation))


def readers(stream: Stream) -> tuple[Reader, ...]:
    """Decoders for the stream's rows, the newest shape first; together they accept every shape.

    Each raises msgspec's errors: ``ValidationError`` for JSON that is not such a
    row, its base class ``DecodeError`` for malformed JSON.
    """
    per_kind = {kind: list(_wire_types(stream, kind)) for kind in stream.kinds}
    rounds = max(map(len, per_kind.values()))
    newest_first = [
        {kind: shapes[min(nth, len(shapes) - 1)] for kind, shapes in per_kind.items()}
        for nth in range(rounds)
    ]
    read = _read_tagged if stream.tagged else _read_untagged
    return tuple(read(stream, wire_types) for wire_types in newest_first)


def sent_cells(stream: Stream, generation: Generation, kind: str) -> Getter | None:
    """A getter of the cells to send to ``generation``; None if the row is sent as it is."""
    shape = stream.shape(generation, kind)
    if shape == stream.kinds[kind].__struct_fields__:
        return None
    if len(shape) == 1:  # attrgetter gives a lone attribute bare
        alone = attrgetter(shape[0])
        return lambda row: (alone(row),)
    return attrgetter(*shape)


def _wire_types(stream: Stream, kind: str) -> Iterator[type[Struct]]:
    """Types for the shapes of one kind, newest first.

    A shape that is a prefix of another one needs no type of its own, because columns
    that some shape lacks have defaults.
    """
    row = stream.kinds[kind]
    defaults = _defaults(row)
    shapes = dict.fromkeys(stream.shape(generation, kind) for generation in NEWEST_FIRST)
    for shape in shapes:
        if any(wider != shape and wider[: len(shape)] == shape for wider in shapes):
            continue
        yield row if shape == row.__struct_fields__ else _shape_struct(row, shape, defaults)


def _shape_struct(
    row: type[Row], shape: tuple[str, ...], defaults: Mapping[str, Any]
) -> type[Struct]:
    hints = get_type_hints(row, include_extras=True)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    optional = True  # only cells at the end may be left out
    for name in reversed(shape):
        optional = optional and name in defaults
        fields.append((name, hints[name], defaults[name]) if optional else (name, hints[name]))
    return msgspec.defstruct(
        f"{row.__name__}Shape",
        fields[::-1],
        array_like=True,
        frozen=True,
        forbid_unknown_fields=True,
        gc=False,
    )


def _defaults(row: type[Row]) -> dict[str, Any]:
    values = row.__struct_defaults__
    names = row.__struct_fields__
    return dict(zip(names[len(names) - len(values) :], values, strict=True))


def _read_untagged(stream: Stream, wire_types: Mapping[str, type[Struct]]) -> Reader:
    row, wire_type = stream.kinds[UNTAGGED], wire_types[UNTAGGED]
    read: Callable[[bytes], Any] = msgspec.json.Decoder(wire_type).decode
    if wire_type is row:
        return read
    return lambda data: row(**msgspec.structs.asdict(read(data)))


def _read_tagged(stream: Stream, wire_types: Mapping[str, type[Struct]]) -> Reader:
    # [kind, [cells…]] is an array-like struct with a tag, so that one decode does it all.
    envelopes = [
        msgspec.defstruct(
            f"{wire_type.__name__}Envelope",
            [("row", wire_type)],
            tag=kind,
            array_like=True,
            frozen=True,
            forbid_unknown_fields=True,
            gc=False,
        )
        for kind, wire_type in wire_types.items()
    ]
    read: Callable[[bytes], Any] = msgspec.json.Decoder(reduce(or_, envelopes)).decode
    if dict(wire_types) == dict(stream.kinds):
        return lambda data: read(data).row
    rows = {wire_type: stream.kinds[kind] for kind, wire_type in wire_types.items()}

    def read_and_widen(data: bytes) -> Row:
        cells = read(data).row
        return rows[type(cells)](**msgspec.structs.asdict(cells))

    return read_and_widen

"""Converts rows to and from bytes on the wire and cells in the database.

On the wire, a row is a JSON array. Peers of a generation with fewer columns send fewer cells, and
some generations use another order. The types to decode, newest first, and the cells to send are
derived from the stream's definition.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import attrgetter, itemgetter, or_
from typing import Any, NoReturn, get_type_hints

import msgspec
from msgspec import Struct

from synrepl.core.errors import InputError, ProtocolError
from synrepl.core.jsons import MAX_DEPTH
from synrepl.streams.columns import Column, ColumnType, columns, row_columns, sql_input
from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.row import Row
from synrepl.streams.storable import first_unstorable, too_deep

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


class BadRow(InputError):
    """a row of stream {stream!r} cannot be accepted, at {path}: {reason}"""


class MalformedRow(ProtocolError):
    """a row of stream {stream!r} is not valid JSON: {reason}"""


#: Errors of decoding: not JSON or no such row, nested too deep, not UTF-8.
_DECODING = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)

#: Errors of encoding a value that JSON cannot represent.
_ENCODING = (TypeError, ValueError, OverflowError, RecursionError)


class RowCodec:
    """Decodes and encodes the rows of one stream.

    Make one per stream and keep it, because it compiles the stream's shapes.

    :raises InputError: the definition contradicts itself (see :mod:`.columns`)
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._columns = columns(stream)
        self._kinds = {row: kind for kind, row in stream.kinds.items()}
        self._newest, *self._older = readers(stream)
        # Only a json column can nest; elsewhere nesting is of the wrong shape.
        self._nests = any(column.type is ColumnType.JSON for column in self._columns)
        self._encode = msgspec.json.Encoder().encode
        self._decode_class = {row: msgspec.json.Decoder(row).decode for row in self._kinds}
        self._makers = {kind: _maker(row, self._columns) for kind, row in stream.kinds.items()}
        self._splitters = {
            row: _splitter(kind, row, self._columns) for row, kind in self._kinds.items()
        }

    def kind_of(self, row: Row) -> str:
        """The kind of a row, :data:`UNTAGGED` in a stream without kinds.

        :raises BadRow: it is not a row of this stream
        """
        try:
            return self._kinds[type(row)]
        except KeyError:
            self._refuse_stranger(row)

    def decode(self, data: bytes) -> Row:
        """Decode the JSON of a line, in the newest generation's shape that fits.

        :raises BadRow: it is JSON, but not a row of this stream
        :raises MalformedRow: it is not JSON, so the sender's framing cannot be trusted
        """
        try:
            row = self._newest(data)
        except _DECODING as error:
            row = self._decode_older(data, error)
        if self._nests and data.count(b"[") + data.count(b"{") > MAX_DEPTH:
            self._check_depth(row)
        return row

    def encoder(self, generation: Generation) -> Callable[[Row], bytes]:
        """A function that encodes rows for peers of ``generation``: compact JSON, UTF-8, one line.

        It expects rows of this stream that have passed :meth:`check_storable`
        or :meth:`decode`, and checks nothing.
        """
        encode = self._encode
        cells = {
            row: (kind, sent_cells(self.stream, generation, kind))
            for row, kind in self._kinds.items()
        }
        if not self.stream.tagged:
            (_, get), *_ = cells.values()
            return encode if get is None else lambda row: encode(get(row))
        if all(get is None for _, get in cells.values()):
            kinds = self._kinds
            return lambda row: encode((kinds[type(row)], row))

        def encode_tagged(row: Row) -> bytes:
            kind, get = cells[type(row)]
            return encode((kind, row if get is None else get(row)))

        return encode_tagged

    def cells(self, row: Row) -> tuple[object, ...]:
        """The cells of a row for the database, one per column of :func:`~.columns.columns`.

        JSON becomes JSON text and ``text[]`` an array literal.

        :raises BadRow: it is not a row of this stream
        """
        try:
            split = self._splitters[type(row)]
        except KeyError:
            self._refuse_stranger(row)
        return split(row)

    def from_cells(self, cells: Sequence[Any]) -> Row:
        """The row of a database row's cells, with JSON already decoded.

        :raises BadRow: the table has a kind that the stream does not know
        """
        kind = cells[0] if self.stream.tagged else UNTAGGED
        make = self._makers.get(kind)
        if make is None:
            self._refuse("$[0]", f"kind {str(kind)[:100]!r} is not known")
        return make(cells)

    def check_storable(self, row: Row) -> None:
        """Refuse a row to be appended that the table or the wire cannot carry.

        That is a value of the wrong type, an integer beyond ``bigint``, NUL or a
        lone surrogate in text, or a value that JSON cannot represent. JSON columns
        are checked, too.

        :raises BadRow: with the path, counted in the fields of the row class
        """
        kind = self.kind_of(row)
        top = "$" if kind == UNTAGGED else "$[1]"
        reason = None
        try:
            data = self._encode(row)
            # A row that decodes to an equal one has the right types and no values that JSON changes.
            if (
                self._decode_class[type(row)](data) == row
                and rb"\u0000" not in data
                and data.count(b"[") + data.count(b"{") <= MAX_DEPTH
            ):
                return
        except msgspec.ValidationError as error:
            path, reason = _located(error)
            self._refuse(top + path.removeprefix("$"), reason)
        except _ENCODING as error:
            reason = str(error) or type(error).__name__
        for index, cell in enumerate(msgspec.structs.astuple(row)):
            if fault := first_unstorable(cell, f"{top}[{index}]"):
                self._refuse(*fault)
        if reason is not None:
            self._refuse(top, reason)

    def _decode_older(self, data: bytes, newest_error: Exception) -> Row:
        for read in self._older:
            with suppress(*_DECODING):
                return read(data)
        self._check_is_json(data)
        self._refuse(*_located(newest_error))

    def _check_is_json(self, data: bytes) -> None:
        # msgspec stops at the first mismatch, which may come before malformed JSON, and
        # calls a lone surrogate malformed; so the standard library decides.
        try:
            json.loads(data.decode(), parse_constant=_no_constant)
        except RecursionError:
            self._refuse("$", f"nested deeper than {MAX_DEPTH} levels")
        except ValueError as error:
            raise MalformedRow(stream=self.stream.name, reason=str(error)[:200]) from None

    def _check_depth(self, row: Row) -> None:
        for index, cell in enumerate(msgspec.structs.astuple(row)):
            if too_deep(cell):
                self._refuse(f"$[{index}]", f"nested deeper than {MAX_DEPTH} levels")

    def _refuse_stranger(self, row: Row) -> NoReturn:
        self._refuse("$", f"a {type(row).__name__} is not a row of this stream")

    def _refuse(self, path: str, reason: str) -> NoReturn:
        raise BadRow(stream=self.stream.name, path=path, reason=reason[:200]) from None


def _located(error: Exception) -> tuple[str, str]:
    """Path and reason of a msgspec error, whose message ends in "- at `$[1]`"."""
    if isinstance(error, RecursionError):
        return "$", f"nested deeper than {MAX_DEPTH} levels"
    if not isinstance(error, msgspec.ValidationError):
        return "$", "text holds a lone surrogate"  # anything else was found not to be JSON
    reason, _, path = str(error).partition(" - at `")
    return path.removesuffix("`") or "$", reason


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _maker(row: type[Row], wanted: Sequence[Column]) -> Callable[[Sequence[Any]], Row]:
    places = {column.name: place for place, column in enumerate(wanted)}
    fields = [places[name] for name in row.__struct_fields__]
    if fields == list(range(len(wanted))):
        return lambda cells: row(*cells)
    if len(fields) == 1:  # itemgetter gives a lone item bare
        alone = fields[0]
        return lambda cells: row(cells[alone])
    pick = itemgetter(*fields)
    return lambda cells: row(*pick(cells))


def _splitter(
    kind: str, row: type[Row], wanted: Sequence[Column]
) -> Callable[[Row], tuple[object, ...]]:
    astuple = msgspec.structs.astuple
    fields = {column.name: place for place, column in enumerate(row_columns(row))}
    plan = [(fields.get(column.name), sql_input(column)) for column in wanted]
    if kind == UNTAGGED and not any(convert for _, convert in plan):
        return astuple

    def split(row: Row) -> tuple[object, ...]:
        values = astuple(row)
        return tuple(
            [
                None
                if place is None
                else values[place]
                if convert is None
                else convert(values[place])
                for place, convert in plan
            ]
        )

    if kind == UNTAGGED:
        return split
    return lambda row: (kind, *split(row)[1:])

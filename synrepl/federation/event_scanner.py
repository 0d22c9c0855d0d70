"""Finds the elements of arrays in a JSON object that may be too large for memory.

The answer to a join can have hundreds of thousands of events. It is read once in chunks, and for each array it is
recorded where its *batches* are: ranges of bytes with whole elements. Elements are never made objects of Python, and
a batch is read when it is needed. Most batches end where the text looks like the end of an element: msgspec, which
reads a gigabyte in a second, proves that, because no prefix of an array parses as a list of whole elements unless it
ends with one. Where that fails, elements are delimited one by one.

Everything is bounded: depth, size of an element or of another member, their numbers. Of duplicate keys the last one
counts, as for :mod:`synrepl.core.jsons`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterator
from typing import BinaryIO, NamedTuple, Never

import msgspec

from synrepl.core.errors import InputError

#: Bytes that are read at once. A batch is not much larger.
CHUNK = 64 * 2**10

#: Maximum size of an element or of another member. Of an event's 65,536 bytes, escapes make three times as many.
MAX_ELEMENT = 256 * 2**10

#: Maximum number of elements of an array. No room has so many events in its state or auth chain.
MAX_ELEMENTS = 1_000_000

#: Maximum number of members of the object, and length of a name, in bytes.
MAX_MEMBERS = 200
MAX_NAME = 1024

#: Maximum depth of an element that is delimited on its own; an event of more levels is refused in any case.
MAX_ELEMENT_DEPTH = 300

_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])

_SPACE = re.compile(rb"[ \t\n\r]*")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]+")

#: Everything up to and including the next bracket that is not in a string.
_TO_BRACKET = re.compile(
    rb'[^"{}\[\]]*+(?:"(?:[^"\\]++|\\.)*+"[^"{}\[\]]*+)*+([{}\[\]])', re.DOTALL
)

#: By the first byte of an array's elements: what stands between two of them. The first byte belongs to the former.
_BETWEEN = {b"{": (b"},{", b"}, {"), b'"': (b'","', b'", "')}

#: How many places are tried before elements are delimited one by one.
_TRIES = 3


class BadJsonObject(InputError):
    """it is no JSON object, or not all of it: {reason}"""


class JsonExtent(NamedTuple):
    """A range of bytes."""

    offset: int
    size: int


class ArrayIndex(NamedTuple):
    """Where the elements of an array are.

    :ivar batches: ranges with whole elements, separated by commas
    :ivar size: number of elements
    """

    batches: list[JsonExtent]
    size: int


class ObjectIndex(NamedTuple):
    """The wanted members of an object.

    :ivar arrays: those that are arrays
    :ivar values: the JSON of those that are not
    """

    arrays: dict[str, ArrayIndex]
    values: dict[str, bytes]


def index_object(body: BinaryIO, wanted: Collection[str]) -> ObjectIndex:
    """Index an object at once; see :func:`indexing`."""
    steps = indexing(body, wanted)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


def indexing(body: BinaryIO, wanted: Collection[str]) -> Generator[int, None, ObjectIndex]:
    """Index an object in steps. It may be in an array after a status, as in version 1 of some endpoints.

    :param wanted: names of members
    :return: yields the number of bytes read after each chunk, and returns the index
    :raises BadJsonObject: it is malformed, incomplete, or beyond a limit
    """
    return (yield from _Indexing(body, wanted).run())


def read_elements(body: BinaryIO, index: ArrayIndex) -> Iterator[bytes]:
    """The JSON of the elements of an array, in order; a batch is in memory at a time."""
    for offset, size in index.batches:
        body.seek(offset)
        yield from map(bytes, _decoded(body.read(size)))


def _decoded(batch: bytes) -> list[msgspec.Raw]:
    """The elements of a batch.

    :raises BadJsonObject:
    """
    try:
        return _ELEMENTS.decode(b"[%b]" % batch)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadJsonObject(reason=f"an element of an array: {error}") from None


class _Indexing:
    """The pass over one object.

    ``_buffer`` has the bytes from ``_start`` (an offset in the body) on that were read and not yet consumed; ``_at`` is
    a place in it.
    """

    def __init__(self, body: BinaryIO, wanted: Collection[str]) -> None:
        self._body = body
        self._wanted = wanted
        self._buffer = b""
        self._start = 0
        self._at = 0
        self._is_whole = False
        self._index = ObjectIndex({}, {})

    def run(self) -> Generator[int, None, ObjectIndex]:
        """See :func:`indexing`."""
        is_wrapped = yield from self._is_next(b"[")
        if is_wrapped:
            yield from self._value(MAX_NAME)
            yield from self._expect(b",")
        yield from self._expect(b"{")
        if not (yield from self._is_next(b"}")):
            for _ in range(MAX_MEMBERS):
                yield from self._member()
                if (yield from self._separator(b"}")):
                    break
            else:
                self._fail(f"it has more than {MAX_MEMBERS} members")
        if is_wrapped:
            yield from self._expect(b"]")
        if (yield from self._peek()):
            self._fail("something follows it")
        return self._index

    # -- members --------------------------------------------------------------------------

    def _member(self) -> Generator[int, None, None]:
        name = yield from self._name()
        yield from self._expect(b":")
        is_wanted = name in self._wanted
        self._index.arrays.pop(name, None)
        self._index.values.pop(name, None)
        if (yield from self._peek()) == b"[":
            array = yield from self._array(is_wanted)
            if is_wanted:
                self._index.arrays[name] = array
            return
        value = yield from self._value()
        _decoded(value)  # raises if it is malformed
        if is_wanted:
            self._index.values[name] = value

    def _name(self) -> Generator[int, None, str]:
        if (yield from self._peek()) != b'"':
            self._fail("a member has no name")
        raw = yield from self._value(MAX_NAME)
        try:
            return msgspec.json.decode(raw, type=str)
        except (msgspec.DecodeError, ValueError):
            self._fail("the name of a member is malformed")

    def _value(self, most: int = MAX_ELEMENT) -> Generator[int, None, bytes]:
        """The JSON of the value that begins here."""
        while True:
            end = self._end_of_value(self._at)
            if end is None and not self._is_whole and len(self._buffer) - self._at <= most:
                yield from self._read()
                continue
            if end is None and self._is_whole:
                self._fail("it ends too early")
            if end is None or end - self._at > most:
                self._fail(f"a part of it has more than {most} bytes")
            value = self._buffer[self._at : end]
            self._at = end
            return value

    # -- arrays ---------------------------------------------------------------------------

    def _array(self, is_wanted: bool) -> Generator[int, None, ArrayIndex]:
        """Consume an array, and index it if it is wanted."""
        batches: list[JsonExtent] = []
        count = 0
        yield from self._expect(b"[")
        if (yield from self._is_next(b"]")):
            return ArrayIndex(batches, 0)
        while True:
            if not self._is_whole and len(self._buffer) - self._at < CHUNK:
                yield from self._read()
            yield from self._peek()
            offset = self._start + self._at
            count += self._quick_batch() or (yield from self._slow_batch())
            if count > MAX_ELEMENTS:
                self._fail(f"an array has more than {MAX_ELEMENTS} elements")
            if is_wanted:
                batches.append(JsonExtent(offset, self._start + self._at - offset))
            if (yield from self._separator(b"]")):
                return ArrayIndex(batches, count)

    def _quick_batch(self) -> int:
        """Consume as many elements as possible, if their end is easily found.

        :return: their number; 0 if it is not
        """
        end = len(self._buffer)
        for between in _BETWEEN.get(self._buffer[self._at : self._at + 1], ()):
            for _ in range(_TRIES):
                found = self._buffer.rfind(between, self._at, end)
                if found < 0:
                    break
                try:
                    number = len(_decoded(self._buffer[self._at : found + 1]))
                except BadJsonObject:
                    end = found
                    continue
                self._at = found + 1
                return number
        return 0

    def _slow_batch(self) -> Generator[int, None, int]:
        """Consume elements one by one: those that are in the buffer, and at least one.

        :return: their number
        """
        first = yield from self._value()
        begin, number = self._at - len(first), 1
        while True:
            comma = _space(self._buffer, self._at)
            following = _space(self._buffer, comma + 1)
            if self._buffer[comma : comma + 1] != b"," or following == len(self._buffer):
                break
            end = self._end_of_value(following)
            if end is None or end - following > MAX_ELEMENT:  # then it will come first
                break
            self._at = end
            number += 1
        if len(_decoded(self._buffer[begin : self._at])) != number:
            self._fail("an array is malformed")
        return number

    # -- bytes ----------------------------------------------------------------------------

    def _end_of_value(self, at: int) -> int | None:
        """Where the value that begins at ``at`` ends; None if it is not all there yet."""
        buffer = self._buffer
        first = buffer[at : at + 1]
        if not first:
            return None
        if first == b'"':
            match = _STRING.match(buffer, at)
            return None if match is None else match.end()
        if first not in (b"{", b"["):
            match = _SCALAR.match(buffer, at)
            if match is None:
                self._fail("a value is malformed")
            return match.end() if match.end() < len(buffer) or self._is_whole else None
        depth = 0
        while True:
            match = _TO_BRACKET.match(buffer, at)
            if match is None:
                return None
            at = match.end()
            depth += 1 if match[1] in b"{[" else -1
            if depth == 0:
                return at
            if depth > MAX_ELEMENT_DEPTH:
                self._fail(f"it is nested deeper than {MAX_ELEMENT_DEPTH} levels")

    def _expect(self, wanted: bytes) -> Generator[int, None, None]:
        if not (yield from self._is_next(wanted)):
            self._fail(f"{wanted.decode()!r} is missing" if self._buffer else "it is incomplete")

    def _is_next(self, wanted: bytes) -> Generator[int, None, bool]:
        """Consume a byte if it comes next."""
        if (yield from self._peek()) != wanted:
            return False
        self._at += 1
        return True

    def _separator(self, closing: bytes) -> Generator[int, None, bool]:
        """Consume what follows a member or element: a comma, or the end; whether it was the end."""
        if (yield from self._is_next(closing)):
            return True
        yield from self._expect(b",")
        return False

    def _peek(self) -> Generator[int, None, bytes]:
        """The next byte that is not white space; empty at the end."""
        while True:
            self._at = _space(self._buffer, self._at)
            if self._at < len(self._buffer) or self._is_whole:
                return self._buffer[self._at : self._at + 1]
            yield from self._read()

    def _read(self) -> Generator[int, None, None]:
        """Read a chunk; what is before ``_at`` is dropped."""
        chunk = self._body.read(CHUNK)
        self._is_whole = not chunk
        self._start += self._at
        self._buffer = self._buffer[self._at :] + chunk
        self._at = 0
        yield len(chunk)

    def _fail(self, reason: str) -> Never:
        raise BadJsonObject(reason=reason)


def _space(buffer: bytes, at: int) -> int:
    """Where the white space that begins at ``at`` ends."""
    match = _SPACE.match(buffer, at)
    return at if match is None else match.end()

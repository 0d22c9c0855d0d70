"""Appends the facts in the bodies of HTTP requests: JSON rows in, tokens out.

Three forms of body are equivalent::

    [row, row, …]                            each row is a fact
    {"rows": [row, row, …]}                  the same
    {"facts": [[row, row], [row], …]}        facts of several rows

Nothing is written, and no token is reserved, unless every row is valid.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from synrepl.core.errors import InputError, SynreplError
from synrepl.core.names import idempotency_key
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import BadRow, MalformedRow, RowCodec
from synrepl.streams.storable import first_unstorable

#: Maximum number of rows in one request. Larger appends need several requests, each atomic.
MAX_ROWS = 100_000


class BadBody(InputError):
    """facts cannot be taken from this body, at {path}: {reason}; it must be an array of rows, or an object with 'rows' or 'facts'"""


class BadFact(InputError):
    """the row at {path} cannot be appended to stream {stream!r}: {reason}; nothing was written"""


class TooManyRows(InputError):
    """the request has {rows} rows, {limit} is the most that one may have; send several requests"""


@dataclass(frozen=True, slots=True)
class AppendAnswer:
    """The answer to an append request.

    :ivar writer: name of the writer that appended the facts; for a replayed request that of the
        first append, which need not be the process that answers
    :ivar ids: stream IDs of the facts, in order; negative in a stream that counts down
    :ivar replayed: the idempotency key was used before, and this is the first answer again
    """

    stream: str
    writer: str
    ids: Sequence[int]
    replayed: bool

    def to_json(self) -> dict[str, object]:
        """``{"stream", "writer", "ids"}``, with ``"replayed": true`` only if it is."""
        answer: dict[str, object] = {"stream": self.stream, "writer": self.writer}
        answer["ids"] = list(self.ids)
        return {**answer, "replayed": True} if self.replayed else answer


class _AppendBody(msgspec.Struct, forbid_unknown_fields=True):
    """A body in one of the forms with an object."""

    rows: list[msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET
    facts: list[list[msgspec.Raw]] | msgspec.UnsetType = msgspec.UNSET


class Intake:
    """Validates and appends the facts of requests, as this process's writer.

    :param writer: appends the facts; refuses streams that it does not write
    :param check: raises an error if this process must not accept appends now
    :ivar outcomes: number of requests by (stream, outcome), where the outcome is ``ok``,
        ``replayed`` or the name of an error class
    :ivar facts: number of appended facts, by stream
    :ivar rows: number of appended rows, by stream
    """

    def __init__(
        self,
        catalogue: Catalogue,
        writer: StreamWriter,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self._catalogue = catalogue
        self._writer = writer
        self._check = check
        self._codecs: dict[str, RowCodec] = {}
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.facts: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()

    async def append(self, stream_name: str, body: bytes, key: str | None = None) -> AppendAnswer:
        """Append the facts in ``body``, all or none; returns once they are committed.

        :param key: idempotency key; repeating a request returns the first answer
        :raises UnknownStream: there is no such stream
        :raises BadBody: :raises BadFact: :raises TooManyRows: :raises BadKey: and
            whatever :meth:`~.stream_writer.StreamWriter.append` raises
        """
        stream = self._catalogue[stream_name]
        try:
            answer = await self._append(stream, body, key)
        except SynreplError as error:
            self.outcomes[stream.name, type(error).__name__] += 1
            raise
        self.outcomes[stream.name, "replayed" if answer.replayed else "ok"] += 1
        return answer

    async def _append(self, stream: Stream, body: bytes, key: str | None) -> AppendAnswer:
        if key is not None:
            idempotency_key(key)
        self._check()
        facts = self._decode(stream, body)
        written = await self._writer.append(stream, facts, key)
        if not written.replayed:
            self.facts[stream.name] += len(facts)
            self.rows[stream.name] += sum(map(len, facts))
        ids = [stream.stream_id(token) for token in written.tokens]
        return AppendAnswer(stream.name, written.writer, ids, written.replayed)

    def _decode(self, stream: Stream, body: bytes) -> list[tuple[Row, ...]]:
        split = _split(body)
        if isinstance(split, list):
            return self._single(stream, split, "$")
        if isinstance(split.rows, list) and split.facts is msgspec.UNSET:
            return self._single(stream, split.rows, "$.rows")
        if isinstance(split.facts, list) and split.rows is msgspec.UNSET:
            return self._several(stream, split.facts)
        raise BadBody(path="$", reason="either 'rows' or 'facts' is needed")

    def _single(self, stream: Stream, rows: list[msgspec.Raw], path: str) -> list[tuple[Row, ...]]:
        _check_count(len(rows))
        return [(row,) for row in self._rows(stream, rows, path)]

    def _several(self, stream: Stream, facts: list[list[msgspec.Raw]]) -> list[tuple[Row, ...]]:
        _check_count(max(len(facts), sum(map(len, facts))))
        if [] in facts:
            raise BadBody(path=f"$.facts[{facts.index([])}]", reason="a fact needs a row")
        return [
            tuple(self._rows(stream, rows, f"$.facts[{index}]")) for index, rows in enumerate(facts)
        ]

    def _rows(self, stream: Stream, rows: list[msgspec.Raw], path: str) -> list[Row]:
        codec = self._codecs.get(stream.name)
        if codec is None:
            codec = self._codecs[stream.name] = RowCodec(stream)
        decode, check = codec.decode, codec.check_storable
        decoded: list[Row] = []
        try:
            for raw in rows:
                row = decode(bytes(raw))
                check(row)
                decoded.append(row)
        except (BadRow, MalformedRow) as error:
            inner = str(error.facts.get("path", "$")).removeprefix("$")
            raise BadFact(
                path=f"{path}[{len(decoded)}]{inner}",
                stream=stream.name,
                reason=error.facts["reason"],
            ) from None
        return decoded


def _split(body: bytes) -> list[msgspec.Raw] | _AppendBody:
    try:
        return _DECODER.decode(body)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `")
        raise BadBody(path=path.removesuffix("`") or "$", reason=reason) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_json(body, error) from None


def _no_json(body: bytes, error: Exception) -> BadBody:
    """Explain why msgspec cannot parse the body.

    msgspec reports a lone surrogate as malformed input, without its place.
    """
    try:
        fault = first_unstorable(json.loads(body.decode()), "$")
    except (ValueError, RecursionError):
        fault = None
    if fault is not None:
        return BadBody(path=fault.path, reason=fault.reason)
    return BadBody(path="$", reason=(str(error) or type(error).__name__)[:200])


def _check_count(rows: int) -> None:
    if rows > MAX_ROWS:
        raise TooManyRows(rows=rows, limit=MAX_ROWS)


_DECODER: msgspec.json.Decoder[list[msgspec.Raw] | _AppendBody] = msgspec.json.Decoder(
    list[msgspec.Raw] | _AppendBody
)

"""Returns missed facts to followers that ask over HTTP (``get_repl_stream_updates``).

Source: ``docs/protocol.md``, "Out-of-band catch-up over HTTP", checked against recorded answers
of real servers. An answer contains every fact in ``(from_token, upto_token]``, and no fact will
be added to that range later. So ``upto_token`` never passes a position:

- With ``writer`` it is bounded by this writer's position, and a request beyond it is cut short.
- Without ``writer`` it is bounded by the linear position. Real workers name no writer, and ask
  up to a *writer's* position, which the linear one may not have reached yet. Their answer is
  marked as ``limited``, so that they ask again; a pause keeps them from asking in a tight loop.
  A request beyond everything known is cut short.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from synrepl.core.clock import Scheduler
from synrepl.core.errors import InputError
from synrepl.core.log import Logger
from synrepl.core.names import writer_name
from synrepl.core.tokens import BadToken, Range, Token, parse_token
from synrepl.services.sources import FactSource, surviving_page
from synrepl.storage.store import Page, Trimmed
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Generation, Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec

#: Number of rows in an answer by default, as on real servers.
DEFAULT_ROWS = 100
MAX_ROWS = 10_000

#: Seconds to wait for the linear position to catch up.
PAUSE_S = 0.1

_Encode = Callable[[Row], bytes]


class MissingParameter(InputError):
    """the query parameter {name!r} is needed"""


class BadLimit(InputError):
    """{value!r} is not a number of rows between 1 and {most}"""


class UnknownGeneration(InputError):
    """there are no {value!r} rows; ask for one of {known}"""


class StreamNotKnownThen(InputError):
    """{generation} peers know no stream {stream!r}; ask with rows={newest}"""


class KnownPositions(Protocol):
    """The positions of a stream; for instance a :class:`.StreamState`."""

    @property
    def positions(self) -> Mapping[str, Token]:
        """Each writer's position."""

    @property
    def linear(self) -> Token:
        """The linear position."""


class StreamUpdates:
    """Answers requests for a range of a stream.

    :param states: the positions of all streams, by name
    :param source: where facts are read from
    """

    def __init__(
        self,
        scheduler: Scheduler,
        catalogue: Catalogue,
        states: Mapping[str, KnownPositions],
        source: FactSource,
        log: Logger,
    ) -> None:
        self._log = log
        self._scheduler = scheduler
        self._catalogue = catalogue
        self._states = states
        self._source = source
        self._encoders: dict[tuple[str, Generation], _Encode] = {}

    async def answer(self, stream_name: str, query: Mapping[str, str]) -> bytes:
        """Answer a request, in JSON.

        :param query: ``from_token`` and ``upto_token``; optionally ``writer``,
            ``limit`` (rows, a target: facts are not split) and ``rows`` (the
            generation of row shapes, ``modern`` when absent; a request with it gets
            streams that this generation did not have, too)
        :raises UnknownStream: there is no such stream
        :raises InputError: a parameter is missing or invalid
        :raises Trimmed: the range begins below the trimmed token; for an ephemeral stream only
            if ``writer`` or ``rows`` is given, since real workers do not understand the error
        :raises DatabaseAway: the facts cannot be read now
        """
        stream = self._catalogue[stream_name]
        asked = Range(_token(query, "from_token"), _token(query, "upto_token"))
        writer = writer_name(query["writer"]) if query.get("writer") else None
        limit = _limit(query.get("limit"))
        encode = self._encoder(stream, query.get("rows"))
        if asked.empty:
            return _json([], int(query["upto_token"]), limited=False)
        is_synrepl = writer is not None or "rows" in query
        return await self._answer(stream, asked, writer, limit, encode, is_synrepl)

    async def _answer(
        self,
        stream: Stream,
        asked: Range,
        writer: str | None,
        limit: int,
        encode: _Encode,
        is_synrepl: bool,
    ) -> bytes:
        state = self._states[stream.name]
        reached = _reached(state, writer)
        promised = writer is None and asked.upto <= max(state.positions.values(), default=0)
        if promised and reached < asked.upto:
            await self._scheduler.sleep(PAUSE_S)
            reached = _reached(state, writer)
        span = Range(asked.after, min(asked.upto, reached))
        if span.empty:
            return _json([], span.after, limited=promised)
        if is_synrepl:
            page = await self._source.page(stream, span, writer, limit)
        else:
            page = await page_skipping_trimmed(
                self._source, stream, span, limit, "a real worker", self._log
            )
        more = page.is_limited or (promised and reached < asked.upto)
        return _json(_updates(page, encode), page.upto, limited=more)

    def _encoder(self, stream: Stream, rows: str | None) -> _Encode:
        try:
            generation = Generation.MODERN if rows is None else Generation(rows)
        except ValueError:
            known = ", ".join(Generation)
            raise UnknownGeneration(value=str(rows)[:40], known=known) from None
        if rows is None and generation not in stream.generations:
            raise StreamNotKnownThen(
                generation=generation, stream=stream.name, newest=Generation.CURRENT
            )
        encode = self._encoders.get((stream.name, generation))
        if encode is None:
            encode = RowCodec(stream).encoder(generation)
            self._encoders[stream.name, generation] = encode
        return encode


def _reached(state: KnownPositions, writer: str | None) -> Token:
    return state.linear if writer is None else state.positions.get(writer, 0)


def _updates(page: Page, encode: _Encode) -> list[bytes]:
    return [b"[%d,%b]" % (fact.token, encode(row)) for fact in page.facts for row in fact.rows]


def _json(updates: list[bytes], upto: int, limited: bool) -> bytes:
    """Build the answer from rows that are JSON already."""
    flag = b"true" if limited else b"false"
    return b'{"updates":[%b],"upto_token":%d,"limited":%b}' % (b",".join(updates), upto, flag)


def _token(query: Mapping[str, str], name: str) -> Token:
    """Parse a token; a negative one, at which streams of real servers may begin, counts as 0."""
    text = query.get(name)
    if text is None:
        raise MissingParameter(name=name)
    if text.startswith("-"):
        parse_token(text[1:])
        return 0
    return parse_token(text)


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_ROWS
    try:
        limit = parse_token(text)
    except BadToken:
        limit = 0
    if not 1 <= limit <= MAX_ROWS:
        raise BadLimit(value=text[:40], most=MAX_ROWS)
    return limit


async def page_skipping_trimmed(
    source: FactSource, stream: Stream, span: Range, limit: int, asker: str, log: Logger
) -> Page:
    """A page of all writers' facts in ``span``, without those that were trimmed.

    For peers that do not understand that rows are gone: a real worker whose request is refused
    repeats it for ever. It can do without rows of a stream that is ephemeral or in memory, so the
    loss is only logged.

    :param asker: name of the client, for the log
    :raises Trimmed: facts of the range are gone, and the stream is neither ephemeral nor in memory
    """
    after = span.after
    while True:
        try:
            return await surviving_page(source, stream, Range(after, span.upto), None, limit)
        except Trimmed as error:
            if not (stream.ephemeral or stream.in_memory):
                raise
            gone = min(int(str(error.facts["trimmed"])), span.upto)
            log.warn(
                "{asker} asks for {stream} above {after}, which is trimmed up to {gone}; it misses these facts",
                asker=asker,
                stream=stream.name,
                after=after,
                gone=gone,
            )
            after = gone
            if after == span.upto:
                return Page((), after, is_limited=False)

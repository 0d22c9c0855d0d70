"""Fetches missed facts from a master over HTTP, for followers without a database.

Source: ``docs/protocol.md``, "Out-of-band catch-up over HTTP", checked against
recorded answers of real servers. These differ from the document, and a follower
has to cope:

- They may return more than was requested (``caches``). Facts beyond the range are
  dropped; they are requested later.
- They may say ``limited: false`` and stop short of the end. The next request
  returns the rest, which may be empty.
- They return ``backfill`` newest first. When such an answer is limited, the *oldest*
  part is missing, so a shorter range is requested.
- Each request needs an ID of its own, because answers are cached by it.
"""

from __future__ import annotations

import secrets
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from urllib.parse import quote

import msgspec
from twisted.logger import Logger

from synrepl.adapters.http.client import Answer, HttpClient, MasterAway, status_text
from synrepl.core.errors import ProtocolError, Refused, Unavailable
from synrepl.core.tokens import Range, Token
from synrepl.storage.store import FactsLost, Page, Trimmed
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import BadRow, MalformedRow, RowCodec

#: Tokens requested at a time where a server returns the newest first.
NEWEST_FIRST_TOKENS = 50

_log = Logger()

_PATH = "/_synapse/replication/get_repl_stream_updates"


class BadAnswer(ProtocolError):
    """the answer of {where} for stream {stream!r} cannot be used: {reason}"""


class RequestRefused(Refused):
    """{where} refused to give facts of stream {stream!r} ({status}): {reason}"""


class SecretRefused(Refused):
    """{where} does not accept the secret ({status}); check secret_path"""


class NothingYet(Unavailable):
    """{where} has nothing of stream {stream!r} above {after} yet, although {upto} was announced"""


class _Updates(msgspec.Struct):
    """The body of an answer."""

    updates: list[tuple[int, msgspec.Raw]]
    upto_token: int
    limited: bool


class HttpSource:
    """Pages of facts from the master; see :class:`synrepl.services.sources.FactSource`.

    :ivar bad_rows: number of rows left out because they do not fit their stream, by stream
    """

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self.bad_rows: Counter[str] = Counter()
        self._codecs: dict[str, RowCodec] = {}
        self._decode: msgspec.json.Decoder[_Updates] = msgspec.json.Decoder(_Updates)

    async def page(self, stream: Stream, span: Range, writer: str | None, limit: int) -> Page:
        """Fetch facts in ``span``, about ``limit`` rows; a page always advances from ``span.after``.

        Facts get ``writer`` as their writer ("" for None), because the answer does not name it.

        :raises MasterAway: it cannot be reached, or answers with an error of its own
        :raises NothingYet: it has nothing of this range yet
        :raises Trimmed: the range begins below what has been trimmed
        :raises FactsLost: the range begins at a fact that a failover may have lost
        :raises SecretRefused: :raises RequestRefused: :raises BadAnswer:
        """
        if span.empty:
            return Page((), span.after, is_limited=False)
        found = await self._ask(stream, span, writer, limit)
        asked, width = span, NEWEST_FIRST_TOKENS
        while found.limited and _is_descending(found):
            if width < 1:
                raise self._bad(stream, "it is limited although one token was asked for")
            asked = Range(span.after, min(span.upto, span.after + width))
            found = await self._ask(stream, asked, writer, limit)
            width //= 2
        return self._page(stream, span, asked, found, writer or "")

    async def _ask(self, stream: Stream, span: Range, writer: str | None, limit: int) -> _Updates:
        query: dict[str, str | int] = {"from_token": span.after, "upto_token": span.upto}
        query |= {"limit": limit, "rows": "current"}
        if writer:
            query["writer"] = writer
        path = f"{_PATH}/{quote(stream.name, safe='')}/{_request_id()}"
        answer = await self._client.get(path, query)
        if answer.status != 200:
            raise self._refusal(stream, span, answer)
        try:
            return self._decode.decode(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._bad(stream, str(error) or type(error).__name__) from None

    def _page(
        self, stream: Stream, span: Range, asked: Range, found: _Updates, writer: str
    ) -> Page:
        upto = min(found.upto_token, asked.upto)
        updates = self._in_order(stream, span, found.updates)
        facts = [
            Fact(token, writer, self._rows(stream, (raw for _, raw in group)))
            for token, group in groupby(updates, key=itemgetter(0))
            if token <= upto
        ]
        if upto <= span.after:
            if updates or found.upto_token < span.after:
                raise self._bad(stream, f"it goes back to {found.upto_token}")
            raise NothingYet(
                where=self._client.where, stream=stream.name, after=span.after, upto=span.upto
            )
        return Page(tuple(facts), upto, is_limited=upto < span.upto)

    def _in_order(
        self, stream: Stream, span: Range, updates: list[tuple[Token, msgspec.Raw]]
    ) -> Sequence[tuple[Token, msgspec.Raw]]:
        tokens = [token for token, _ in updates]
        if tokens and min(tokens) <= span.after:
            raise self._bad(stream, f"it has token {min(tokens)}, {span.after} was known already")
        ordered = sorted(updates, key=itemgetter(0))
        if not stream.unordered and tokens != [token for token, _ in ordered]:
            raise self._bad(stream, "its tokens go down")
        return ordered

    def _rows(self, stream: Stream, raws: Iterable[msgspec.Raw]) -> tuple[Row, ...]:
        """Decode rows and leave out bad ones, as in the live lane; the first bad one is logged."""
        codec = self._codecs.get(stream.name)
        if codec is None:
            codec = self._codecs[stream.name] = RowCodec(stream)
        rows: list[Row] = []
        for raw in raws:
            try:
                rows.append(codec.decode(bytes(raw)))
            except (BadRow, MalformedRow) as error:
                self.bad_rows[stream.name] += 1
                if self.bad_rows[stream.name] == 1:
                    _log.warn("{error}; such rows are ignored", error=error)
        return tuple(rows)

    def _refusal(self, stream: Stream, span: Range, answer: Answer) -> Exception:
        where, status = self._client.where, status_text(answer.status)
        body = _json_object(answer.body)
        if answer.status in (401, 403):
            return SecretRefused(where=where, status=status)
        trimmed = body.get("trimmed")
        if answer.status == 410 and isinstance(trimmed, int) and trimmed > span.after:
            return Trimmed(stream=stream.name, trimmed=trimmed, after=span.after)
        kept, floor = body.get("kept"), body.get("floor")
        if (
            answer.status == 410
            and isinstance(kept, int)
            and isinstance(floor, int)
            and kept < span.after < floor - 1
        ):
            return FactsLost(stream=stream.name, kept=kept, floor=floor, after=span.after)
        reason = str(body.get("message") or body.get("error") or "it does not say why")[:200]
        if answer.status >= 500 or answer.status == 429:
            return MasterAway(where=where, reason=f"{status}: {reason}")
        return RequestRefused(where=where, stream=stream.name, status=status, reason=reason)

    def _bad(self, stream: Stream, reason: str) -> BadAnswer:
        return BadAnswer(where=self._client.where, stream=stream.name, reason=reason[:200])


def _is_descending(found: _Updates) -> bool:
    updates = found.updates
    return len(updates) > 1 and updates[-1][0] < updates[0][0]


def _json_object(body: bytes) -> Mapping[str, object]:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _request_id() -> str:
    return "".join(secrets.choice(string.ascii_letters) for _ in range(10))

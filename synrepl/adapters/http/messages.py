"""Requests and answers as route handlers see them, independent of the connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from twisted.web.http_headers import Headers as RequestHeaders

from synrepl.core import jsons
from synrepl.core.errors import InputError

JSON = "application/json"

#: Names and values of an answer's headers.
Headers = Sequence[tuple[str, str]]

#: Maximum number of query parameters; no request needs as many.
MAX_PARAMETERS = 50


class BadHeader(InputError):
    """the header {name} is not acceptable: {reason}"""


class BadQuery(InputError):
    """the query of this URL is not acceptable: {reason}"""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A complete request.

    :ivar path: values of the placeholders of the route's pattern
    :ivar remote_address: the address of the connection
    :ivar uri: path and query as they were sent
    """

    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: RequestHeaders
    body: bytes
    remote_address: str = ""
    method: str = "GET"
    uri: str = ""

    def header(self, name: str) -> str | None:
        """The value of a header that may occur once; None without it.

        :raises BadHeader: it occurs twice, or is not ASCII
        """
        return one_header(self.headers, name)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A complete answer."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Headers = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedAnswer(HttpAnswer):
    """An answer whose body is made while it is sent, as fast as the client reads it.

    An error while it is made aborts the connection, so that what was sent is not taken for a whole answer.

    :ivar body: its beginning
    :ivar chunks: what follows; it is closed also when the client goes away
    """

    chunks: AsyncIterator[bytes]


def json_answer(value: Any, status: int = 200) -> HttpAnswer:
    """An answer whose body is JSON."""
    return HttpAnswer(status, jsons.encode(value))


def fields_of(content_type: str, headers: Headers) -> dict[str, str]:
    """The headers of an answer but for its length.

    :param headers: its own, and those of all answers
    """
    return {
        "Content-Type": content_type,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        **dict(headers),
    }


def answer_head(answer: HttpAnswer, more: Headers, *, version: bytes, closes: bool) -> bytes:
    """The head of an answer, up to the empty line.

    :param more: further headers
    :param version: of the request
    :param closes: whether the connection is closed after it
    """
    most = _most_of_head(answer.status, answer.content_type, (*answer.headers, *more))
    close = b"Connection: close\r\n" if closes else b""
    return b"%b %b%bContent-Length: %d\r\n\r\n" % (version, most, close, len(answer.body))


@lru_cache(256)
def _most_of_head(status: int, content_type: str, headers: Headers) -> bytes:
    """What is the same for many answers: from the status to the headers."""
    fields = fields_of(content_type, headers)
    lines = [f"{status} {HTTPStatus(status).phrase}"]
    # A line break in a value would begin another header.
    lines += [f"{name}: {' '.join(value.splitlines())}" for name, value in fields.items()]
    return "\r\n".join([*lines, ""]).encode("latin-1", "replace")


def one_header(headers: RequestHeaders, name: str) -> str | None:
    """See :meth:`HttpRequest.header`."""
    values = headers.getRawHeaders(name.encode(), [])
    if not values:
        return None
    if len(values) > 1:
        raise BadHeader(name=name, reason="it was sent more than once")
    try:
        return values[0].decode("ascii")
    except UnicodeDecodeError:
        raise BadHeader(name=name, reason="it is not ASCII") from None


def parse_query(text: bytes, repeatable: Collection[str] = ()) -> dict[str, str]:
    """The parameters of a URL.

    :param repeatable: names of parameters that may be repeated; the first value counts

    :raises BadQuery: not ASCII, too many, or a repeated parameter
    """
    try:
        pairs = parse_qsl(
            text.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MAX_PARAMETERS,
        )
    except ValueError as error:
        raise BadQuery(reason=str(error)[:100]) from None
    query: dict[str, str] = {}
    for name, value in pairs:
        if name not in query:
            query[name] = value
        elif name not in repeatable:
            raise BadQuery(reason="a parameter was given twice")
    return query

"""Requests and answers as route handlers see them, independent of the connection."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from twisted.web.http_headers import Headers

from synrepl.core import jsons
from synrepl.core.errors import InputError

JSON = "application/json"

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
    headers: Headers
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
    headers: Sequence[tuple[str, str]] = field(default=())


def json_answer(value: Any, status: int = 200) -> HttpAnswer:
    """An answer whose body is JSON."""
    return HttpAnswer(status, jsons.encode(value))


def answer_headers(answer: HttpAnswer) -> list[tuple[str, str]]:
    """All headers of an answer."""
    return [
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        *answer.headers,
    ]


def phrase(status: int) -> bytes:
    """The reason phrase of a status."""
    return HTTPStatus(status).phrase.encode()


def one_header(headers: Headers, name: str) -> str | None:
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

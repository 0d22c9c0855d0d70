"""Positions of a client's writes, as text of a header and of a cookie.

A client that sends the text back is answered once the process has what the client wrote, whichever process took
the write. A client with a cookie jar does so without knowing.
"""

from __future__ import annotations

from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie

from synrepl.adapters.client_api.policy import POSITION_HEADER
from synrepl.adapters.http.messages import HttpAnswer, HttpRequest
from synrepl.core.errors import InputError
from synrepl.core.names import BadName, stream_name
from synrepl.positions.vector import BadVector, PositionVector

#: Positions by stream.
WritePositions = Mapping[str, PositionVector]

POSITION_COOKIE = "synrepl_position"

#: Seconds for which a client sends its positions back; followers are behind by less.
COOKIE_S = 60

#: Maximum length of positions as text. Longer ones are not sent back.
MAX_POSITIONS_LENGTH = 2000


class BadWritePositions(InputError):
    """the header X-Synrepl-Position is not what an answer of this server had: {reason}"""


def positions_text(positions: WritePositions) -> str:
    """``events:0~writer1.12|receipts:0~writer2.3``; needs no quoting in a cookie."""
    return "|".join(f"{stream}:{vector}" for stream, vector in sorted(positions.items()))


def parse_positions(text: str) -> WritePositions:
    """Parse the output of :func:`positions_text`.

    :raises BadWritePositions:
    """
    if len(text) > MAX_POSITIONS_LENGTH:
        raise BadWritePositions(reason="it is too long")
    found: dict[str, PositionVector] = {}
    for part in text.split("|"):
        stream, _, vector = part.partition(":")
        try:
            found[stream_name(stream)] = PositionVector.parse(vector)
        except (BadName, BadVector) as error:
            raise BadWritePositions(reason=error) from None
    return found


def required_positions(request: HttpRequest) -> WritePositions:
    """The positions in the header of a request.

    :raises BadWritePositions: :raises BadHeader:
    """
    text = request.header(POSITION_HEADER)
    return {} if text is None else parse_positions(text)


def remembered_positions(request: HttpRequest) -> WritePositions:
    """The positions in the cookie of a request; none if it is malformed."""
    try:
        cookies = request.header("Cookie")
        if cookies is None:
            return {}
        jar: SimpleCookie = SimpleCookie()
        jar.load(cookies)
        return parse_positions(jar[POSITION_COOKIE].value) if POSITION_COOKIE in jar else {}
    except (CookieError, InputError):
        return {}


def with_positions(answer: HttpAnswer, positions: WritePositions) -> HttpAnswer:
    """An answer that tells the client the positions of its write."""
    header = (POSITION_HEADER, positions_text(positions))
    return HttpAnswer(
        answer.status, answer.body, answer.content_type, headers=[*answer.headers, header]
    )


def with_cookie(request: HttpRequest, answer: HttpAnswer) -> HttpAnswer:
    """An answer whose positions, if it has some, become a cookie, together with those that the request had."""
    written = next((value for name, value in answer.headers if name == POSITION_HEADER), None)
    if written is None:
        return answer
    positions = dict(remembered_positions(request))
    for stream, vector in parse_positions(written).items():
        positions[stream] = positions.get(stream, PositionVector()).merge(vector)
    text = positions_text(positions)
    if len(text) > MAX_POSITIONS_LENGTH:
        text = written
    cookie = f"{POSITION_COOKIE}={text}; Max-Age={COOKIE_S}; Path=/_matrix; HttpOnly; SameSite=Lax"
    headers = [*answer.headers, ("Set-Cookie", cookie)]
    return HttpAnswer(answer.status, answer.body, answer.content_type, headers=headers)

"""What Matrix clients send: JSON bodies within limits, and access tokens."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from synrepl.adapters.client_api.errors import BadClientBody, MissingToken
from synrepl.adapters.http.messages import HttpRequest
from synrepl.core import jsons

#: Maximum length of an access token.
MAX_TOKEN_LENGTH = 4096

T = TypeVar("T")


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; an empty body is an empty object.

    :raises BadJson: it is not JSON, or nested deeper than :data:`.jsons.MAX_DEPTH`
    :raises BadClientBody: it is JSON, but not an object
    """
    if not body.strip():
        return {}
    value = jsons.decode(body, "the body")
    if not isinstance(value, dict):
        raise BadClientBody(place="", reason="it is not a JSON object")
    return value


def body_as(kind: type[T], body: bytes) -> T:
    """The JSON object in a body, as a struct; members that the struct lacks are ignored.

    :raises BadJson: :raises BadClientBody: a member is missing or of the wrong type
    """
    try:
        return msgspec.convert(json_object(body), kind)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `")
        place = f" at {path.removesuffix('`').removeprefix('$.')}" if path else ""
        raise BadClientBody(place=place, reason=reason) from None


def access_token(request: HttpRequest) -> str:
    """The access token of a request: of the header ``Authorization``, else of the URL.

    Source: https://spec.matrix.org/v1.16/client-server-api/#using-access-tokens

    :raises MissingToken: there is none
    :raises BadHeader: the header is repeated or malformed
    """
    kind, _, token = (request.header("Authorization") or "").partition(" ")
    if kind.lower() != "bearer":
        token = request.query.get("access_token", "")
    token = token.strip()
    if not token or len(token) > MAX_TOKEN_LENGTH:
        raise MissingToken()
    return token

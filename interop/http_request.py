"""HTTP requests that wait for their answers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any, NamedTuple

_TIME_LIMIT_S = 60.0


class Answer(NamedTuple):
    """An answer; ``content`` is its decoded JSON, or its text."""

    status: int
    content: Any


def request(method: str, url: str, body: object = None, token: str | None = None) -> Answer:
    """Ask a server on loopback.

    :param token: sent as a bearer's
    :raises OSError: it does not answer
    """
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=_TIME_LIMIT_S) as answer:
            return Answer(answer.status, _content(answer.read()))
    except urllib.error.HTTPError as refusal:
        with refusal:
            return Answer(refusal.code, _content(refusal.read()))


def _content(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")

"""A request to a simulated server, as its endpoints see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import orjson

from simulator.federation.pure_answer import PureAnswer
from synrepl.federation.requests import FederationRequest


@dataclass(frozen=True)
class PureRequest:
    """A request.

    :ivar origin: the server that it comes from
    :ivar endpoint: such as ``send_join``; ``keys`` and ``notary`` for those of keys
    :ivar path: the segments after it
    """

    origin: str
    endpoint: str
    path: Sequence[str]
    query: Sequence[tuple[str, str]]
    body: Mapping[str, Any]

    @classmethod
    def of(cls, origin: str, request: FederationRequest) -> PureRequest:
        """A request of a server."""
        _, what, _, name, *path = map(unquote, request.path.strip("/").split("/"))
        if what == "key":
            name = "keys" if name == "server" else "notary"
        body = orjson.loads(request.content or b"{}")
        return cls(origin, name, path, request.query, body)

    @property
    def parameters(self) -> Mapping[str, str]:
        """The parameters by name; of one that is repeated, the last."""
        return dict(self.query)


#: Answers requests; raises :class:`~simulator.federation.pure_answer.RefusedRequest`.
Endpoint = Callable[[PureRequest], PureAnswer | Awaitable[PureAnswer]]

"""The policy of a listener for Matrix clients: any host, pages of any site, an answer to every preflight.

Access tokens are checked by the endpoints that need one, so every route is public here. A page of another
site has no token unless its user logged in there, so cross-site requests are allowed as the specification asks:
https://spec.matrix.org/v1.16/client-server-api/#web-browser-clients
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from synrepl.adapters.client_api.errors import TRANSPORT_ERRORS, ErrorTable, matrix_error_answer
from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.policy import RequestHead
from synrepl.adapters.http.routes import Match, Route, Router
from synrepl.core.errors import SynreplError

#: The header with the positions of a write, which pages may read.
POSITION_HEADER = "X-Synrepl-Position"

CORS_HEADERS = (
    ("Access-Control-Allow-Origin", "*"),
    ("Access-Control-Allow-Methods", "GET, POST, PUT, DELETE, OPTIONS"),
    (
        "Access-Control-Allow-Headers",
        f"X-Requested-With, Content-Type, Authorization, {POSITION_HEADER}",
    ),
    ("Access-Control-Expose-Headers", f"{POSITION_HEADER}, Retry-After"),
)


async def _preflight(request: HttpRequest) -> HttpAnswer:
    return json_answer({})


_PREFLIGHT = Match(Route("OPTIONS", "*", _preflight, public=True, immediate=True), {})


class MatrixPolicy:
    """See :class:`.ListenerPolicy`.

    :param errors: how errors of the endpoints are answered; those of the transport are known
    """

    headers: Sequence[tuple[str, str]] = CORS_HEADERS

    def __init__(self, errors: ErrorTable) -> None:
        self._errors = {**TRANSPORT_ERRORS, **errors}

    def admit(self, head: RequestHead, router: Router) -> Match:
        """The route of a request; a preflight has one for every path.

        :raises NoSuchPath: :raises MethodNotAllowed:
        """
        if head.method == b"OPTIONS":
            return _PREFLIGHT
        return router.find(head.method.decode("ascii", "replace"), head.path)

    def error_answer(
        self, error: Exception, statuses: Mapping[type[SynreplError], int]
    ) -> HttpAnswer:
        """See :func:`.matrix_error_answer`."""
        return matrix_error_answer(error, self._errors)

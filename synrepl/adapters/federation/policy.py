"""The policy of a listener for other servers: a signature, which is looked at before a body is received.

Whether the signature is right shows only with the body; :class:`.FederationEndpoints` verifies it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twisted.web.http_headers import Headers

from synrepl.adapters.client_api.errors import ErrorTable, matrix_error_answer
from synrepl.adapters.federation.errors import FEDERATION_TRANSPORT_ERRORS
from synrepl.adapters.http.messages import HttpAnswer
from synrepl.adapters.http.policy import RequestHead
from synrepl.adapters.http.routes import Match, Router
from synrepl.core.errors import SynreplError
from synrepl.federation.x_matrix import XMatrix, parse_x_matrix


class FederationPolicy:
    """See :class:`.ListenerPolicy`. Public routes need no signature.

    :param server_name: of this server
    :param errors: how errors of the endpoints are answered; those of the transport are known
    """

    headers: Sequence[tuple[str, str]] = ()

    def __init__(self, server_name: str, errors: ErrorTable) -> None:
        self._server_name = server_name
        self._errors = {**FEDERATION_TRANSPORT_ERRORS, **errors}

    def admit(self, head: RequestHead, router: Router) -> Match:
        """The route of a request that has a signature, or needs none.

        :raises NoSuchPath: :raises MethodNotAllowed:
        :raises MissingXMatrix: :raises BadXMatrix: :raises WrongDestination:
        """
        found = router.find(head.method.decode("ascii", "replace"), head.path)
        if not found.route.public:
            signature_of(head.headers, self._server_name)
        return found

    def error_answer(
        self, error: Exception, statuses: Mapping[type[SynreplError], int]
    ) -> HttpAnswer:
        """See :func:`.matrix_error_answer`."""
        return matrix_error_answer(error, self._errors)


def signature_of(headers: Headers, server_name: str) -> XMatrix:
    """The signature in the headers of a request.

    :raises MissingXMatrix: :raises BadXMatrix: :raises WrongDestination:
    """
    values: Sequence[bytes] = headers.getRawHeaders(b"Authorization", [])
    return parse_x_matrix([value.decode("latin-1") for value in values], server_name)

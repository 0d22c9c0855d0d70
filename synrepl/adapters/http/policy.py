"""What differs between kinds of HTTP listeners: who may ask, and what errors look like."""

# mypy: disable-error-code="no-untyped-call"
# (the methods of twisted.web's headers have no types)

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from twisted.web.http_headers import Headers

from synrepl.adapters.http.errors import Unauthorized, error_answer
from synrepl.adapters.http.hosts import HostNames, check_origin
from synrepl.adapters.http.messages import HttpAnswer
from synrepl.adapters.http.routes import Match, Router
from synrepl.core.errors import SynreplError


class RequestHead(NamedTuple):
    """A request before its body.

    :ivar path: of the URL, undecoded
    :ivar version: such as ``HTTP/1.1``
    :ivar local_address: the address that the request was sent to
    """

    method: bytes
    path: bytes
    version: bytes
    headers: Headers
    local_address: str


class ListenerPolicy(Protocol):
    """Who may ask a listener, and what errors look like.

    :ivar headers: are sent with every answer
    """

    headers: Sequence[tuple[str, str]]

    def admit(self, head: RequestHead, router: Router) -> Match:
        """The route of a request whose body may be received.

        :raises SynreplError: the request is refused
        """

    def error_answer(
        self, error: Exception, statuses: Mapping[type[SynreplError], int]
    ) -> HttpAnswer:
        """The answer for an error.

        :param statuses: overrides of the route, by error class
        """


class AdminPolicy:
    """The policy of a process's own listener: known hosts, a secret, and no pages of other sites.

    :param secret: requests must carry it as ``Authorization: Bearer …``; None for no authentication
    :param hosts: names that the listener answers to, besides those of loopback
    """

    headers: Sequence[tuple[str, str]] = ()

    def __init__(self, secret: str | None = None, hosts: Collection[str] = ()) -> None:
        self._secret = None if secret is None else secret.encode()
        self._hosts = HostNames(hosts)

    def admit(self, head: RequestHead, router: Router) -> Match:
        """The route of a request that passes all checks.

        :raises WrongHost: :raises BadHeader: :raises CrossSite:
        :raises Unauthorized: :raises NoSuchPath: :raises MethodNotAllowed:
        """
        self._hosts.check(head.headers, head.version, head.local_address)
        try:
            found = router.find(head.method.decode("ascii", "replace"), head.path)
        except SynreplError:
            self._check_secret(head.headers)
            raise
        if not found.route.public:
            self._check_secret(head.headers)
        check_origin(head.headers, found.route.takes_body)
        return found

    def error_answer(
        self, error: Exception, statuses: Mapping[type[SynreplError], int]
    ) -> HttpAnswer:
        """``{"error": name, "message": text}``; see :func:`.error_answer`."""
        return error_answer(error, statuses)

    def _check_secret(self, headers: Headers) -> None:
        if self._secret is None:
            return
        given = headers.getRawHeaders(b"Authorization", [])
        kind, _, value = (given[0] if len(given) == 1 else b"").partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(value.strip(), self._secret):
            raise Unauthorized()

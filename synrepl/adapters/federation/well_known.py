"""Fetches ``.well-known/matrix/server`` of hosts, and remembers what was in it.

Source: https://spec.matrix.org/v1.16/server-server-api/#resolving-server-names
"""

from __future__ import annotations

from collections import OrderedDict
from urllib.parse import urljoin, urlsplit

from synrepl.adapters.federation.endpoints import AddressNotAllowed
from synrepl.adapters.federation.exchange import HttpsAnswer, HttpsClient, HttpsRequest, reason_of
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.caches.load import Load
from synrepl.core.errors import InputError
from synrepl.core.log import Logger
from synrepl.federation import delegations
from synrepl.federation.delegations import Delegation, lifetime_s
from synrepl.federation.discovery import (
    MAX_WELL_KNOWN,
    WELL_KNOWN_PATH,
    BadWellKnown,
    ServerRoute,
    delegated_name,
)
from synrepl.federation.errors import AnswerTooLarge
from synrepl.federation.server_names import HostPort, UnusableServerName, parse_server_name

#: Maximum number of hosts of which something is remembered.
MAX_HOSTS = 10_000

#: Maximum number of redirections that are followed.
MAX_REDIRECTS = 5

#: Seconds that a document may take.
TIMEOUT_S = 15.0

HTTPS_PORT = 443

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class BadRedirect(InputError):
    """{host} redirects to {location!r}: {reason}"""


class WellKnownLookups:
    """Says what hosts delegate to.

    :param port: of HTTPS
    """

    def __init__(
        self, scheduler: TwistedScheduler, client: HttpsClient, log: Logger, port: int = HTTPS_PORT
    ) -> None:
        self._scheduler = scheduler
        self._client = client
        self._log = log
        self._port = port
        self._known: OrderedDict[str, Delegation] = OrderedDict()
        self._loads: dict[str, Load] = {}

    async def delegated(self, host: str) -> str | None:
        """The server name that a host delegates to; None if it does not, or did not answer."""
        now = self._scheduler.seconds()
        known = self._known.get(host)
        if known is not None and now < known.expires_at:
            if now >= known.refresh_at and host not in self._loads:
                self._fetch(host)  # meanwhile, what is known counts
            return known.delegated
        load = self._loads.get(host) or self._fetch(host)
        await load.join(self._scheduler.promise())
        fetched = self._known.get(host)
        return None if fetched is None else fetched.delegated

    def _fetch(self, host: str) -> Load:
        """Fetch the document of a host, once for all who wait for it."""
        load = self._loads[host] = Load(0)
        self._scheduler.spawn("fetch a well-known document", self._run(host, load))
        return load

    async def _run(self, host: str, load: Load) -> None:
        try:
            self._remember(host, await self._outcome(host))
        finally:
            del self._loads[host]
            load.succeed(None)

    async def _outcome(self, host: str) -> Delegation:
        before, random = self._known.get(host), self._scheduler.random
        try:
            answer = await self._follow(host)
        except (AddressNotAllowed, AnswerTooLarge, BadRedirect) as error:
            self._log.info("no delegation by {host}: {error}", host=host, error=error)
            return delegations.absent(self._scheduler.seconds(), random)
        except Exception as error:  # of Twisted or OpenSSL, whatever they are
            self._log.info(
                "no answer about delegation by {host}: {reason}",
                host=host,
                reason=reason_of(error),
            )
            return delegations.unavailable(before, self._scheduler.seconds(), random)
        now = self._scheduler.seconds()
        try:
            if answer.status >= 500 or answer.status == 429:
                return delegations.unavailable(before, now, random)
            if answer.status != 200:
                return delegations.absent(now, random)
            name = delegated_name(answer.body.read(), host)
            control = answer.headers.getRawHeaders("Cache-Control", [])
            expires = answer.headers.getRawHeaders("Expires", [None])[0]
            return delegations.found(name, lifetime_s(control, expires, now), now, random)
        except BadWellKnown as error:
            self._log.info("no delegation by {host}: {error}", host=host, error=error)
            return delegations.absent(now, random)
        finally:
            answer.body.close()

    async def _follow(self, host: str) -> HttpsAnswer:
        """The answer of a host, or of where it redirects to.

        :raises BadRedirect: :raises Exception: see :meth:`.HttpsClient.exchange`
        """
        url = f"https://{host}{WELL_KNOWN_PATH}"
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._get(url, host)
            if answer.status not in _REDIRECTS:
                return answer
            location = answer.headers.getRawHeaders("Location", [""])[0]
            answer.body.close()
            url = urljoin(url, location[:2000])
        raise BadRedirect(host=host, location=url[:200], reason="there are too many redirections")

    async def _get(self, url: str, host: str) -> HttpsAnswer:
        try:
            parts = urlsplit(url)
            named = parse_server_name(parts.netloc)
        except (ValueError, UnusableServerName) as error:
            raise BadRedirect(host=host, location=url[:200], reason=error) from None
        if parts.scheme != "https" or not url.isascii() or not url.isprintable():
            # Over plain HTTP, anybody in between could take over the server's name.
            raise BadRedirect(host=host, location=url[:200], reason="that is no https:// URL")
        place = HostPort(named.host, named.port or self._port)
        request = HttpsRequest(
            "GET",
            (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
            {"Accept": "application/json"},
            None,
            TIMEOUT_S,
            TIMEOUT_S,
            MAX_WELL_KNOWN,
            f"the document at {url[:200]}",
        )
        return await self._client.exchange(ServerRoute(named.text, named.host, (place,)), request)

    def _remember(self, host: str, delegation: Delegation) -> None:
        self._known[host] = delegation
        self._known.move_to_end(host)
        while len(self._known) > MAX_HOSTS:
            self._known.popitem(last=False)

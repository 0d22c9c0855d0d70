"""Asking a process over HTTP from a command that may block: no reactor, standard library only."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from synrepl.core import jsons
from synrepl.core.errors import InputError, ProtocolError, Refused, Unavailable

#: Longest answer that is read, in bytes.
MAX_ANSWER = 64 * 2**20


class BadUrl(InputError):
    """{url!r} is not the address of a process; it looks like http://127.0.0.1:9093"""


class ProcessAway(Unavailable):
    """nothing answers at {url}: {reason}; is the process running, and is this its http listener?"""


class NotSynrepl(ProtocolError):
    """the answer of {url} cannot be used: {reason}; is this synrepl's http listener?"""


class SecretNeeded(Refused):
    """{url} wants its secret, or another one; say where it is by secret_path"""


class RequestFailed(Refused):
    """{url} refused ({status} {error}): {message}"""


class ProcessBusy(Unavailable):
    """{url} cannot do that now ({status} {error}): {message}"""


class BlockingClient:
    """Asks one process; each request has a connection of its own.

    :param url: such as ``http://127.0.0.1:9093``
    :param secret: sent as ``Authorization: Bearer …``
    :param timeout_s: for each wait on the network
    :raises BadUrl:
    """

    def __init__(self, url: str, secret: str | None = None, timeout_s: float = 30.0) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise BadUrl(url=url[:200]) from None
        bare = parts.path in ("", "/") and not (parts.query or parts.fragment)
        if parts.scheme not in ("http", "https") or not host or not bare:
            raise BadUrl(url=url[:200])
        self._url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._secure = parts.scheme == "https"
        self._host, self._port = host, port
        self._timeout_s = timeout_s
        self._headers = {"Accept": "application/json", "User-Agent": "synrepl"}
        if secret is not None:
            self._headers["Authorization"] = f"Bearer {secret}"

    def status(self) -> dict[str, Any]:
        """The status of the process.

        :raises ProcessAway: :raises SecretNeeded: :raises NotSynrepl: :raises RequestFailed:
        """
        return self._ask("GET", "/status")

    def ready(self) -> dict[str, Any]:
        """``{"ready", "reasons", "warnings"}``, whichever it is."""
        return self._ask("GET", "/ready", accept=(200, 503))

    def append(self, stream: str, body: bytes, key: str | None = None) -> dict[str, Any]:
        """Append facts; see :mod:`synrepl.services.writing.intake` for ``body`` and the answer.

        :param key: idempotency key; without one, do not repeat what failed half way
        :raises RequestFailed: with the path to a bad value in its message
        :raises ProcessBusy: and what :meth:`status` raises
        """
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        return self._ask("POST", f"/streams/{quote(stream, safe='')}/facts", body, headers)

    def updates(self, stream: str, query: Mapping[str, str | int]) -> dict[str, Any]:
        """Facts in a range; see :mod:`synrepl.services.serving.updates`."""
        path = f"/_synapse/replication/get_repl_stream_updates/{quote(stream, safe='')}"
        return self._ask("GET", f"{path}?{urlencode(query)}")

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        accept: tuple[int, ...] = (200,),
    ) -> dict[str, Any]:
        status, answer = self._exchange(method, path, body, {**self._headers, **(headers or {})})
        try:
            told = jsons.decode(answer, "it")
        except InputError as error:
            raise NotSynrepl(url=self._url, reason=f"{status}, {error}") from None
        if not isinstance(told, dict):
            raise NotSynrepl(url=self._url, reason=f"{status}, not a JSON object")
        if status in accept:
            return told
        if status == 401:
            raise SecretNeeded(url=self._url)
        failed = ProcessBusy if status == 503 else RequestFailed
        raise failed(
            url=self._url,
            status=status,
            error=str(told.get("error", ""))[:100],
            message=str(told.get("message", ""))[:1000],
        )

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        connection = self._connection()
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            answer = response.read(MAX_ANSWER + 1)
        except OSError as error:
            raise ProcessAway(url=self._url, reason=_reason(error, self._timeout_s)) from None
        except (HTTPException, ValueError) as error:
            reason = f"{type(error).__name__} {error}".strip()[:200]
            raise NotSynrepl(url=self._url, reason=reason) from None
        finally:
            connection.close()
        if len(answer) > MAX_ANSWER:
            raise NotSynrepl(url=self._url, reason=f"it is longer than {MAX_ANSWER} bytes")
        if response.length:  # bytes that were announced and did not come
            raise ProcessAway(url=self._url, reason="the answer broke off")
        return response.status, answer

    def _connection(self) -> http.client.HTTPConnection:
        if self._secure:
            return http.client.HTTPSConnection(
                self._host,
                self._port,
                timeout=self._timeout_s,
                context=ssl.create_default_context(),
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)


def _reason(error: OSError, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    return error.strerror or str(error) or type(error).__name__

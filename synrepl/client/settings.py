"""Connection settings of the clients, and the translation of transport errors."""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Generator
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2

from synrepl.client.errors import (
    BadSecret,
    BadUrl,
    ServerUnreachable,
    ServerUntrusted,
    UnusableAnswer,
)
from synrepl.client.exchange import (
    ClientCall,
    HttpReply,
    NoReply,
    Send,
    SendOutcome,
    Step,
    exchange,
    retry_after,
)

T = TypeVar("T")
X = TypeVar("X", bound=BaseException)

#: Maximum size of an answer, in bytes.
MAX_ANSWER = 64 * 2**20

#: Timeout for connecting, in seconds.
CONNECT_S = 5.0

#: Default timeout of a call, in seconds.
TIMEOUT_S = 30.0

#: Errors that occur before anything is sent.
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)

_CREDENTIALS = re.compile(r"(?<=//)[^/]*@")


class ClientSettings:
    """The arguments of both clients, validated.

    :raises BadUrl: ``url`` is not acceptable
    :raises BadSecret: ``secret`` cannot be sent in a header
    """

    def __init__(
        self,
        url: str,
        secret: str | None,
        timeout_s: float,
        retries: bool,
        unix_socket: str | os.PathLike[str] | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.url = _checked_url(url)
        if secret is not None and not re.fullmatch(r"[\x21-\x7e]+", secret, re.ASCII):
            raise BadSecret()
        self.timeout_s = timeout_s
        self.retries = retries
        self.headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",  # so that MAX_ANSWER limits the decoded size too
            "User-Agent": "synrepl",
        }
        if secret is not None:
            self.headers["Authorization"] = f"Bearer {secret}"
        secure = self.url.startswith("https:")
        self.transport: dict[str, Any] = {
            "verify": (tls or ssl.create_default_context()) if secure else False,
            "uds": None if unix_socket is None else os.fspath(unix_socket),
            "trust_env": False,  # a proxy of the environment gets neither facts nor the secret
            "limits": httpx2.Limits(max_connections=100, max_keepalive_connections=20),
        }

    def steps(
        self, call: ClientCall[T], timeout_s: float | None
    ) -> Generator[Step, SendOutcome, T]:
        """The steps of a call, within ``timeout_s`` or the client's own timeout."""
        limit = self.timeout_s if timeout_s is None else timeout_s
        return exchange(call, self.url, limit, self.retries, time.monotonic)

    def no_reply(self, error: Exception, timeout_s: float) -> NoReply:
        """Translate an error of the HTTP library."""
        untrusted = _cause(error, ssl.SSLCertVerificationError)
        if untrusted is not None:
            reason = untrusted.verify_message
            return NoReply(ServerUntrusted(url=self.url, reason=reason), False)
        if isinstance(error, (httpx2.RemoteProtocolError, httpx2.DecodingError)):
            reason = f"{type(error).__name__} {error}".strip()[:200]
            if "without sending" not in reason:  # the only mark of a lost connection
                return NoReply(UnusableAnswer(url=self.url, reason=reason), True)
            reason = "the answer broke off"
        elif isinstance(error, (httpx2.TimeoutException, TimeoutError)):
            reason = f"no answer within {timeout_s:g} s"
        else:
            reason = _system_reason(error)
        unreachable = ServerUnreachable(url=self.url, reason=reason)
        return NoReply(unreachable, not isinstance(error, _NOT_SENT))

    def too_long(self) -> NoReply:
        """The error of an answer that exceeds :data:`MAX_ANSWER`."""
        reason = f"it is longer than {MAX_ANSWER} bytes"
        return NoReply(UnusableAnswer(url=self.url, reason=reason), True)


def _checked_url(url: str) -> str:
    """The URL without a trailing slash.

    :raises BadUrl: it is not the base URL of a process; its credentials are not repeated
    """
    shown = _CREDENTIALS.sub("***@", url)[:200]
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise BadUrl(url=shown) from None
    bare = parts.path in ("", "/") and not (parts.query or parts.fragment or "@" in parts.netloc)
    if parts.scheme not in ("http", "https") or not host or not bare:
        raise BadUrl(url=shown)
    return f"{parts.scheme}://{parts.netloc}"


def request_of(send: Send) -> dict[str, Any]:
    """The arguments of the HTTP library for a request."""
    limit = send.timeout_s
    return {
        "method": send.method,
        "url": send.path,
        "content": send.body,
        "headers": send.headers,
        "timeout": httpx2.Timeout(limit, connect=min(limit, CONNECT_S)),
    }


def reply_of(response: httpx2.Response, body: bytearray) -> HttpReply:
    """The reply for an answer whose body was read."""
    after = retry_after(response.headers.get("Retry-After"))
    return HttpReply(response.status_code, bytes(body), after)


def _system_reason(error: BaseException) -> str:
    """The operating system's message, from the first cause that has one."""
    refused = _cause(error, ConnectionError)
    if refused is not None and refused.errno:
        return os.strerror(refused.errno)  # asyncio replaces the system's message
    failed = _cause(error, OSError)
    return (failed.strerror if failed is not None else None) or str(error) or type(error).__name__


def _cause(error: BaseException, kind: type[X]) -> X | None:
    """The first of an error and its causes that is an instance of ``kind``."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, kind):
            return found
        found = found.__cause__ or found.__context__
    return None

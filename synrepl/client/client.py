"""The blocking client."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterable, Sequence
from typing import Any, Self, TypeVar

import httpx2

from synrepl.client import calls
from synrepl.client.calls import BATCH_ROWS, WAIT_MARGIN_S, Appended
from synrepl.client.exchange import ClientCall, HttpReply, NoReply, Pause, Send
from synrepl.client.settings import (
    MAX_ANSWER,
    TIMEOUT_S,
    ClientSettings,
    reply_of,
    request_of,
)
from synrepl.core.tokens import Token

T = TypeVar("T")


class Client:
    """Appends facts to a process and waits for its positions, blocking the calling thread.

    >>> from synrepl import Client
    >>> with Client("http://127.0.0.1:9393") as client:
    ...     appended = client.append("orders", [["o1", 5], ["o2", 7]])
    >>> appended.writer, appended.tokens
    ('master', (1, 2))

    Each call is retried with back-off while the process is away or busy, until its timeout. Appends
    carry an idempotency key, so a retry does not append twice.

    A client keeps connections open: make one per process of your application, after a fork, and
    use it in all threads. Proxies from the environment are not used. The logger
    ``synrepl.client`` has a line of level INFO for each failed attempt.

    :param url: such as ``http://127.0.0.1:9393``: the ``http`` listener of the process
    :param secret: sent as ``Authorization: Bearer …``; never in a message or a log
    :param timeout_s: timeout of a call with all its attempts, in seconds
    :param retries: False to report at once that a process is away or busy
    :param unix_socket: path of a unix socket to connect to, instead of the host of ``url``
    :param tls: how to verify the server of an ``https`` URL; None for the system's authorities
    :raises BadUrl: ``url`` is not a URL, or has a path or credentials
    :raises BadSecret: ``secret`` cannot be sent in a header
    """

    def __init__(
        self,
        url: str,
        secret: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        retries: bool = True,
        unix_socket: str | os.PathLike[str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings = ClientSettings(
            url, secret, timeout_s, retries, unix_socket, tls
        )
        self._http = httpx2.Client(
            transport=httpx2.HTTPTransport(**settings.transport),
            base_url=settings.url,
            headers=settings.headers,
            trust_env=False,
        )

    def append(
        self,
        stream: str,
        rows: Iterable[Sequence[Any]],
        *,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> Appended:
        """Append one fact per row, all or none, and wait until they are committed.

        >>> client.append("orders", [["o3", 1]], key="order-o3").replayed
        False
        >>> client.append("orders", [["o3", 1]], key="order-o3").replayed
        True

        :param rows: lists of JSON values, in the order of the stream's columns
        :param key: idempotency key: the same request with the same key is appended once, and
            returns the first answer again; by default, each call has a new key
        :param timeout_s: timeout of this call, instead of the client's
        :raises BadRows: a row is not a list, or contains a value that is not JSON
        :raises AppendRefused: the process refused the facts, and appended nothing
        :raises AppendUnconfirmed: there was no answer in time; repeat the call with its ``key``
        :raises Unavailable: the process was away or busy all the time, and appended nothing
        """
        return self.append_body(
            stream, *calls.encode_rows(stream, rows), key=key, timeout_s=timeout_s
        )

    def append_facts(
        self,
        stream: str,
        facts: Iterable[Iterable[Sequence[Any]]],
        *,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> Appended:
        """Append facts of any number of rows each; see :meth:`append`.

        >>> client.append_facts("orders", [[["o4", 1], ["o4", 2]], [["o5", 3]]]).tokens
        (4, 5)

        :param facts: the rows of each fact; a fact has one token for all of them
        """
        body, count = calls.encode_facts(stream, facts)
        return self.append_body(stream, body, count, key=key, timeout_s=timeout_s)

    def append_batches(
        self,
        stream: str,
        rows: Iterable[Sequence[Any]],
        *,
        key: str,
        batch_rows: int = BATCH_ROWS,
        timeout_s: float | None = None,
    ) -> list[Appended]:
        """Append many rows in several requests; each request is appended as a whole.

        >>> batches = client.append_batches("orders", ([f"b{n}", n] for n in range(12_000)), key="load-1")
        >>> [len(batch.tokens) for batch in batches]
        [5000, 5000, 2000]

        :param rows: any number of rows; they are not held in memory
        :param key: idempotency key of the whole. After an error, repeat the call with the same rows
            and key: batches that were appended are not appended again
        :param batch_rows: maximum number of rows of a request
        :param timeout_s: timeout of each request
        :raises SynreplError: as for :meth:`append`; earlier batches are appended
        """
        return [
            self.append_body(stream, body, count, key=f"{key}-{number}", timeout_s=timeout_s)
            for number, (body, count) in enumerate(calls.encode_batches(stream, rows, batch_rows))
        ]

    def append_body(
        self,
        stream: str,
        body: bytes,
        facts: int | None = None,
        *,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> Appended:
        """Append facts that are already encoded; see :meth:`append`.

        :param body: JSON: ``{"rows": […]}`` or ``{"facts": […]}``
        :param facts: the number of facts in it, which the answer has to match
        """
        return self._call(calls.append_call(stream, body, key, facts), timeout_s)

    def wait(self, appended: Appended, *, timeout_s: float = 10.0) -> Token:
        """Wait until the process of this client has facts that were appended at any process.

        Read your writes: afterwards, handlers of that process have handled the facts, and its
        caches are at least as new.

        >>> with Client("http://127.0.0.1:9394") as worker:
        ...     position = worker.wait(client.append("orders", [["o6", 5]]))
        >>> position > 5
        True

        :param appended: what an append returned
        :param timeout_s: seconds to wait, 300 at most
        :returns: the position of the writer at the process
        :raises WaitExpired: the process did not reach the token in time; the message says what delays it
        :raises ServerRefused: the process does not follow the stream
        """
        return self.wait_for(appended.stream, appended.writer, appended.token, timeout_s=timeout_s)

    def wait_for(
        self, stream: str, writer: str | None, token: Token, *, timeout_s: float = 10.0
    ) -> Token:
        """Wait until the process has all facts of a writer up to a token.

        :param writer: None to wait for the linear position of all writers
        :param timeout_s: seconds to wait, 300 at most
        :returns: the position, ``token`` or above
        :raises WaitExpired: as for :meth:`wait`
        :raises ServerRefused: as for :meth:`wait`
        """
        call = calls.wait_call(stream, writer, token, timeout_s)
        return self._call(call, timeout_s + WAIT_MARGIN_S)

    def status(self) -> dict[str, Any]:
        """The streams, positions, followers and lag of the process: the answer of ``GET /status``.

        >>> "master" in client.status()["streams"]["orders"]["writers"]
        True
        """
        return self._call(calls.get_call("/status"), None)

    def ready(self) -> dict[str, Any]:
        """Whether the process is ready: ``{"ready": …, "reasons": […]}``.

        >>> client.ready()["ready"]
        True
        """
        return self._call(calls.get_call("/ready", also=503), None)

    def caches(self) -> dict[str, Any]:
        """The counts of the process's caches, by name."""
        return self._call(calls.get_call("/caches"), None)

    def audit_caches(self, keys: int) -> dict[str, Any]:
        """Make the process compare entries of its caches with the database.

        :param keys: number of entries, chosen at random
        :returns: the report, as ``synrepl doctor caches --json`` prints it
        """
        return self._call(calls.audit_call(keys), None)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings.url!r})"

    def _call(self, call: ClientCall[T], timeout_s: float | None) -> T:
        steps = self._settings.steps(call, timeout_s)
        step = next(steps)
        try:
            while True:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    step = next(steps)
                else:
                    step = steps.send(self._send(step))
        except StopIteration as done:
            result: T = done.value
            return result

    def _send(self, send: Send) -> HttpReply | NoReply:
        deadline = time.monotonic() + send.timeout_s
        body = bytearray()
        try:
            with self._http.stream(**request_of(send)) as response:
                for chunk in response.iter_raw():
                    body += chunk
                    if len(body) > MAX_ANSWER:
                        return self._settings.too_long()
                    if time.monotonic() > deadline:
                        raise TimeoutError
                return reply_of(response, body)
        except (httpx2.HTTPError, OSError) as error:
            return self._settings.no_reply(error, send.timeout_s)

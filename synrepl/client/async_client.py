"""The asynchronous client, for asyncio and Trio."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Sequence
from typing import Any, Self, TypeVar

import anyio
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


class AsyncClient:
    """The counterpart of :class:`Client` for coroutines under asyncio or Trio.

    >>> import asyncio
    >>> from synrepl import AsyncClient
    >>> async def order() -> int:
    ...     async with AsyncClient("http://127.0.0.1:9393") as client:
    ...         appended = await client.append("orders", [["o1", 5]], key="order-o1")
    ...         return await client.wait(appended)
    >>> asyncio.run(order()) >= 1
    True

    Its parameters and methods are those of :class:`Client`.
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
        self._http = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(**settings.transport),
            base_url=settings.url,
            headers=settings.headers,
            trust_env=False,
        )

    async def append(
        self,
        stream: str,
        rows: Iterable[Sequence[Any]],
        *,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> Appended:
        """See :meth:`Client.append`."""
        body, count = calls.encode_rows(stream, rows)
        return await self.append_body(stream, body, count, key=key, timeout_s=timeout_s)

    async def append_facts(
        self,
        stream: str,
        facts: Iterable[Iterable[Sequence[Any]]],
        *,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> Appended:
        """See :meth:`Client.append_facts`."""
        body, count = calls.encode_facts(stream, facts)
        return await self.append_body(stream, body, count, key=key, timeout_s=timeout_s)

    async def append_batches(
        self,
        stream: str,
        rows: Iterable[Sequence[Any]],
        *,
        key: str,
        batch_rows: int = BATCH_ROWS,
        timeout_s: float | None = None,
    ) -> list[Appended]:
        """See :meth:`Client.append_batches`."""
        return [
            await self.append_body(stream, body, count, key=f"{key}-{number}", timeout_s=timeout_s)
            for number, (body, count) in enumerate(calls.encode_batches(stream, rows, batch_rows))
        ]

    async def append_body(
        self,
        stream: str,
        body: bytes,
        facts: int | None = None,
        *,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> Appended:
        """See :meth:`Client.append_body`."""
        return await self._call(calls.append_call(stream, body, key, facts), timeout_s)

    async def wait(self, appended: Appended, *, timeout_s: float = 10.0) -> Token:
        """See :meth:`Client.wait`."""
        stream, writer = appended.stream, appended.writer
        return await self.wait_for(stream, writer, appended.token, timeout_s=timeout_s)

    async def wait_for(
        self, stream: str, writer: str | None, token: Token, *, timeout_s: float = 10.0
    ) -> Token:
        """See :meth:`Client.wait_for`."""
        call = calls.wait_call(stream, writer, token, timeout_s)
        return await self._call(call, timeout_s + WAIT_MARGIN_S)

    async def status(self) -> dict[str, Any]:
        """See :meth:`Client.status`."""
        return await self._call(calls.get_call("/status"), None)

    async def ready(self) -> dict[str, Any]:
        """See :meth:`Client.ready`."""
        return await self._call(calls.get_call("/ready", also=503), None)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings.url!r})"

    async def _call(self, call: ClientCall[T], timeout_s: float | None) -> T:
        steps = self._settings.steps(call, timeout_s)
        step = next(steps)
        try:
            while True:
                if isinstance(step, Pause):
                    await anyio.sleep(step.seconds)
                    step = next(steps)
                else:
                    step = steps.send(await self._send(step))
        except StopIteration as done:
            result: T = done.value
            return result

    async def _send(self, send: Send) -> HttpReply | NoReply:
        body = bytearray()
        try:
            with anyio.fail_after(send.timeout_s):
                async with self._http.stream(**request_of(send)) as response:
                    async for chunk in response.aiter_raw():
                        body += chunk
                        if len(body) > MAX_ANSWER:
                            return self._settings.too_long()
                    return reply_of(response, body)
        except (httpx2.HTTPError, OSError) as error:
            return self._settings.no_reply(error, send.timeout_s)

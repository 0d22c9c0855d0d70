"""A handler with a cache, for tests of whole processes, and a socket to query it.

A question is a line of JSON, a list of a method and its arguments; so is the
answer, ``["ok", result]`` or ``["error", name, message]``.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory
from twisted.protocols.basic import LineOnlyReceiver

from synrepl.adapters.caches import cached
from synrepl.services.coherence.invalidations import ChangeOutbox
from synrepl.services.handlers import Access, Handler
from synrepl.storage.database import Transaction


class Users(Handler):
    """Caches the names of users from a table.

    :param socket: path of the unix socket on which it answers questions
    """

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self.loads = 0

    async def on_start(self, access: Access) -> None:
        """Listen."""
        self._access = access
        any_reactor: Any = reactor
        any_reactor.listenUNIX(self._socket, QuestionFactory(self.answer))

    @cached(by_name=True)
    async def get_name(self, user_id: str) -> str | None:
        """The name of a user."""
        self.loads += 1
        assert self._access.database is not None
        found: str | None = await self._access.database.run(
            "get name",
            lambda txn: (
                txn.execute(
                    "SELECT name FROM users WHERE user_id = %s", (user_id,)
                ).fetchone_or_none()
                or (None,)
            )[0],
            read_only=True,
        )
        return found

    async def answer(self, method: str, *arguments: Any) -> Any:
        """Answer a question."""
        return await getattr(self, f"do_{method}")(*arguments)

    async def do_name(self, user_id: str) -> Any:
        """The name, and the number of loads so far."""
        return [await self.get_name(user_id), self.loads]

    async def do_rename(self, user_id: str, name: str, fail: bool = False) -> Any:
        """Change a name, and invalidate it everywhere; the writer and the token to wait for."""

        def work(txn: Transaction, outbox: ChangeOutbox) -> None:
            txn.execute(
                "INSERT INTO users VALUES (%s, %s)"
                " ON CONFLICT (user_id) DO UPDATE SET name = EXCLUDED.name",
                (user_id, name),
            )
            outbox.invalidate("get_name", (user_id,))
            if fail:
                raise ValueError("so be it")

        assert self._access.changes is not None
        changed = await self._access.changes.run("rename", work)
        return [changed.writer, changed.tokens["caches"]]

    async def do_wait(self, writer: str, token: int, timeout_s: float) -> Any:
        """Wait until this process has a token of the ``caches`` stream."""
        return await self._access.wait_for("caches", writer, token, timeout_s)


class QuestionFactory(Factory):
    """Answers questions, one after the other on each connection."""

    noisy = False

    def __init__(self, answer: Callable[..., Awaitable[Any]]) -> None:
        self.answer = answer

    def buildProtocol(self, addr: object) -> Any:
        """For one who asks."""
        line = _Line()
        line.factory = self
        return line


class _Line(LineOnlyReceiver):
    delimiter = b"\n"
    factory: Any

    def lineReceived(self, line: bytes) -> None:
        Deferred.fromCoroutine(self._answer(json.loads(line)))

    async def _answer(self, question: list[Any]) -> None:
        try:
            said = ["ok", await self.factory.answer(*question)]
        except Exception as error:
            said = ["error", type(error).__name__, str(error)]
        self.sendLine(json.dumps(said).encode())

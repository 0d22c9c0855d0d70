"""Test case base: a master and workers with the handlers of a shop, as real processes."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any, ClassVar

from twisted.internet.threads import deferToThread

from system_tests.daemon.shop import TOTALS
from tests.cli.cli_case import Command
from tests.daemon.writers_case import WritersCase


class ShopCase(WritersCase):
    """Starts workers with handlers, and reads the handlers' effects."""

    stream_writers = "{orders: [master, w2]}"

    #: More of the master's configuration.
    master_settings: ClassVar[dict[str, str]] = {}

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.sql(TOTALS)
        await self.begin("master", **self.master_settings)

    async def text(self, name: str, path: str) -> str:
        """What a process answers, as text."""

        def ask() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http[name]}{path}") as answer:
                return str(answer.read().decode())

        return await deferToThread(ask)

    def sql(self, statement: str, *params: object) -> list[Any]:
        """Run a statement on a plain connection."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement, params or None)
            return cursor.fetchall() if cursor.description else []

    def file(self, name: str) -> Path:
        """A file of the test's directory."""
        return self.directory / name

    def touch(self, name: str) -> Path:
        """Create a file in the test's directory."""
        self.file(name).touch()
        return self.file(name)

    def mailer(self, name: str = "mail", cls: str = "Mailer", **more: str) -> str:
        """The configuration of a handler that writes into the file of its name."""
        config = f"{{path: {self.file(name)}, closed: {self.file(f'{name}.closed')},"
        config += f" cured: {self.file('cured')}}}"
        rest = "".join(f", {key}: {value}" for key, value in more.items())
        return f"{{class: 'system_tests.daemon.shop:{cls}', name: {name}, config: {config}{rest}}}"

    def totals(self, **more: str) -> str:
        """The configuration of a handler that works in the database."""
        rest = "".join(f", {key}: {value}" for key, value in more.items())
        config = f"{{cured: {self.file('cured')}}}"
        return f"{{class: 'system_tests.daemon.shop:Totals', name: totals, config: {config}{rest}}}"

    async def worker(self, *handlers: str, name: str = "w1", **settings: str) -> Command:
        """Start a worker, and wait until it is connected."""
        process = self.process(name, handlers=f"[{', '.join(handlers)}]", **settings)
        await process.stderr_containing("connected to")
        return process

    async def stop(self, process: Command, signal: str) -> None:
        """End a process by a signal."""
        process.signal(signal)
        done = await process.done()
        self.assertEqual(done.code, 0 if signal == "TERM" else -9, done.err)

    async def order(self, *names: str, at: str = "master") -> int:
        """Append orders, at a process; the last token."""
        tokens: list[int] = await self.append(at, "orders", *([name, 1, None] for name in names))
        return tokens[-1]

    def mails(self, name: str = "mail") -> list[str]:
        """The lines of a mailer: writer, token and order."""
        path = self.file(name)
        return path.read_text().splitlines() if path.exists() else []

    def orders_of(self, name: str = "mail") -> list[str]:
        """The orders in the lines of a mailer."""
        return [line.split()[2] for line in self.mails(name)]

    def in_totals(self) -> list[str]:
        """The orders that are in the table."""
        return [row[0] for row in self.sql("SELECT order_id FROM totals ORDER BY token, ctid")]

    async def until_true(self, what: Any) -> None:
        """Wait until a condition is true."""

        async def ask() -> bool:
            return bool(what())

        await self.until(ask)

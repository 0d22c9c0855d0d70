"""The clients of applications against a real master that goes away and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from threading import Thread

from twisted.internet.threads import deferToThread

from synrepl.client.async_client import AsyncClient
from synrepl.client.calls import Appended
from synrepl.client.client import Client
from tests.cli.cli_case import CliCase, InProcessMaster

THREADS, APPENDS = 4, 15


class Restarts(CliCase):
    """Every append is acknowledged once, and stored once."""

    async def check(self, master: InProcessMaster, appended: Sequence[Appended]) -> None:
        """Each acknowledged token is one fact of the table, and there are no others."""
        tokens = sorted(token for each in appended for token in each.tokens)
        stored = await master.stored()
        self.assertEqual(len(stored), THREADS * APPENDS)
        self.assertEqual(len({rows[0][0] for rows in stored}), THREADS * APPENDS)
        self.assertEqual(len(set(tokens)), THREADS * APPENDS)

    async def test_a_client_shared_by_threads_loses_nothing_over_restarts(self) -> None:
        master = await self.master()
        appended: list[Appended] = []

        def all_threads() -> None:
            with Client(f"http://127.0.0.1:{master.http_port}", timeout_s=90) as client:

                def one(thread: int) -> None:
                    for number in range(APPENDS):
                        appended.append(client.append("orders", [[f"{thread}-{number}", number]]))

                threads = [Thread(target=one, args=(number,)) for number in range(THREADS)]
                for each in threads:
                    each.start()
                for each in threads:
                    each.join()

        done = deferToThread(all_threads)
        while len(appended) < THREADS:
            await self.yield_to_processes()
        await master.stop()
        await master.start()
        await done
        await self.check(master, appended)

    async def test_an_asynchronous_client_loses_no_concurrent_append_over_restarts(self) -> None:
        master = await self.master()
        appended: list[Appended] = []

        async def main() -> None:
            async with AsyncClient(f"http://127.0.0.1:{master.http_port}", timeout_s=90) as client:

                async def one(task: int) -> None:
                    for number in range(APPENDS):
                        appended.append(await client.append("orders", [[f"{task}-{number}", 1]]))

                await asyncio.gather(*(one(number) for number in range(THREADS)))

        done = deferToThread(lambda: asyncio.run(main()))
        while len(appended) < THREADS:
            await self.yield_to_processes()
        await master.stop()
        await master.start()
        await done
        await self.check(master, appended)

"""The federation stream: filled while sending is delegated, and trimmed as senders acknowledge."""

from __future__ import annotations

import json
import signal
import urllib.request
from typing import Any

from twisted.internet.threads import deferToThread

from synrepl.testing.redis import RedisTestServer
from tests.cli.cli_case import Command
from tests.daemon.writers_case import WritersCase

SENDERS = "[sender1, sender2]"


class FederationSendingCase(WritersCase):
    """A master with a federation stream, and two senders."""

    catalogue = "[federation]"

    async def master_with_senders(self, **settings: str) -> Command:
        """Start the master."""
        return await self.begin(
            "master", **{"catalogue": self.catalogue, "stream_writers": "{}", **settings}
        )

    def sender(self, name: str, **settings: str) -> Command:
        """Start a federation sender, which acknowledges all that it gets."""
        config = f"{{path: {self.directory / name}.acked}}"
        handler = (
            f"{{class: 'system_tests.daemon.command_handlers:FederationSender', config: {config}}}"
        )
        written = {
            "catalogue": self.catalogue,
            "stream_writers": "{}",
            "federation_sender_instances": SENDERS,
            "handlers": f"[{handler}]",
            "master": f"{{port: {self.port}, http_url: 'http://127.0.0.1:{self.http['master']}'}}",
            **settings,
        }
        return self.process(name, **written)

    async def federate(self, count: int, at: str = "master") -> Any:
        """Append facts."""
        return await self.ask(
            at, "/streams/federation/facts", [["k", {"n": n}] for n in range(count)]
        )

    async def until_floor(self, floor: int | None, held_by: str, name: str = "master") -> Any:
        """Wait until all senders have acknowledged so much; what the status then says."""

        async def it_is() -> Any:
            federation = (await self.ask(name, "/status"))["federation"]
            return (
                federation
                if (federation["floor"], federation["held_by"]) == (floor, held_by)
                else None
            )

        return await self.until(it_is)

    async def metrics(self) -> str:
        """What a scrape of the master gives."""
        url = f"http://127.0.0.1:{self.http['master']}/metrics"

        def ask() -> str:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return str(answer.read().decode())

        return str(await deferToThread(ask))

    async def stop(self, process: Command) -> None:
        """Stop a process in an orderly way."""
        process.signal("TERM")
        self.assertEqual((await process.done()).code, 0)


class OverTcp(FederationSendingCase):
    async def test_it_takes_nothing_while_sending_is_not_delegated(self) -> None:
        await self.master_with_senders()
        code, error, message = await self.federate(1)
        self.assertEqual((code, error), (409, "SendingNotDelegated"))
        self.assertIn("federation_sender_instances", message)
        status = await self.ask("master", "/status")
        self.assertEqual(
            (status["federation"], status["streams"]["federation"]["position"]), (None, 0)
        )

    async def test_what_all_senders_have_acknowledged_is_dropped(self) -> None:
        await self.master_with_senders(federation_sender_instances=SENDERS)
        one = self.sender("sender1")
        await self.until_ready("sender1")
        await self.federate(5)
        await self.until_floor(None, "sender2")
        shown = await self.run_command("status", "-c", self.directory / "master.yaml")
        printed = " ".join(shown.out.split())
        self.assertIn(
            "federation is acknowledged up to -: sender1 5, sender2 -; held by sender2,"
            " which has acknowledged nothing",
            printed,
        )
        self.sender("sender2")
        self.assertEqual(
            (await self.until_floor(5, "sender1"))["senders"], {"sender1": 5, "sender2": 5}
        )

        async def trimmed() -> Any:
            stream = (await self.ask("master", "/status"))["streams"]["federation"]
            return stream["trimmed"] if stream["trimmed"]["upto"] == 5 else None

        self.assertEqual(await self.until(trimmed), {"upto": 5, "rows": 5, "held_by": "sender1"})
        path = "/_synapse/replication/get_repl_stream_updates/federation?from_token=0&upto_token=5"
        self.assertEqual((await self.ask("master", path))["updates"], [])

        # One that is away is waited for, and gets what it has missed.
        await self.stop(one)
        await self.federate(3)
        await self.until_floor(5, "sender1")
        self.sender("sender1")
        await self.until_floor(8, "sender1")
        acked = (self.directory / "sender1.acked").read_text().split()
        self.assertEqual(acked[-1], "8")
        scraped = await self.metrics()
        for line in (
            'synrepl_federation_acknowledged{sender="sender2"} 8.0',
            "synrepl_federation_floor 8.0",
            'synrepl_federation_holds{sender="sender1"} 1.0',
            'synrepl_rows_trimmed_total{stream="federation"}',
        ):
            self.assertIn(line, scraped)

    async def test_after_a_restart_old_acknowledgements_lose_nothing(self) -> None:
        master = await self.master_with_senders(federation_sender_instances="[sender1]")
        self.sender("sender1", federation_sender_instances="[sender1]")
        await self.until_ready("sender1")
        await self.federate(5)
        await self.until_floor(5, "sender1")
        await self.stop(master)
        await self.master_with_senders(federation_sender_instances="[sender1]")
        await self.until_ready("sender1")
        status = await self.ask("master", "/status")
        self.assertEqual(status["federation"]["senders"], {"sender1": None})
        self.assertEqual((await self.ask("sender1", "/status"))["sending"]["acknowledged"], None)
        await self.federate(2)
        await self.until_floor(2, "sender1")
        acked = (self.directory / "sender1.acked").read_text().split()
        self.assertEqual(acked[-1], "2")

    async def test_a_sender_that_is_away_until_the_stream_has_grown_again_misses_facts(
        self,
    ) -> None:
        """A known limit: nothing on the wire tells that the stream has started again."""
        one = "[sender1]"
        master = await self.master_with_senders(federation_sender_instances=one)
        sender = self.sender("sender1", federation_sender_instances=one)
        await self.until_ready("sender1")
        await self.federate(5)
        await self.until_floor(5, "sender1")
        sender.signal(signal.SIGSTOP)
        await self.stop(master)
        http = self.http["master"]
        self.process(
            "master",
            catalogue=self.catalogue,
            stream_writers="{}",
            federation_sender_instances=one,
            http=f"{{port: {http}}}",
        )
        self.http["master"] = http
        await self.until_ready("master")
        await self.federate(7)
        sender.signal(signal.SIGCONT)
        await self.until_floor(7, "sender1")
        acked = (self.directory / "sender1.acked").read_text().split()
        self.assertEqual(acked, ["5", "7"])  # it was given 6 and 7 only


class OverRedis(FederationSendingCase):
    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.redis = RedisTestServer()
        self.addCleanup(self.redis.close)

    async def test_a_worker_keeps_the_stream_and_the_master_a_copy(self) -> None:
        everybody = {
            "redis": f"{{path: {self.redis.path}}}",
            "federation_sender_instances": "[sender1]",
            "stream_writers": "{federation: [w1]}",
        }
        await self.master_with_senders(**everybody)
        self.process("w1", catalogue=self.catalogue, **everybody)
        await self.until_ready("w1")
        self.sender("sender1", **everybody)
        await self.until_ready("sender1")
        self.assertEqual((await self.federate(4, "w1"))["ids"], [1, 2, 3, 4])
        for name in ("master", "w1"):
            await self.until_floor(4, "sender1", name)
        path = "/_synapse/replication/get_repl_stream_updates/federation?from_token=0&upto_token=4"
        for name in ("master", "w1"):

            async def is_empty(name: str = name) -> bool:
                return (await self.ask(name, path)) == json.loads(
                    '{"updates": [], "upto_token": 4, "limited": false}'
                )

            await self.until(is_empty)

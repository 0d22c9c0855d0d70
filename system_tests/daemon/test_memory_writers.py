"""A worker that writes a stream kept in its memory: real processes over a real Redis, and TCP."""

from __future__ import annotations

from typing import Any

from synrepl.testing.redis import RedisTestServer
from tests.daemon.writers_case import WritersCase

ROOM = "!room:example.com"


class MemoryCase(WritersCase):
    """``w1`` writes the stream; the master and ``w2`` hear it over Redis, ``w3`` over TCP."""

    stream_writers = "{orders: [master], typing: [w1]}"
    more_of_redis = ""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.redis = RedisTestServer()
        self.addCleanup(self.redis.close)
        for name in ("master", "w1", "w2"):
            await self.join(name)
        await self.join("w3", over_redis=False)

    async def join(self, name: str, over_redis: bool = True, **more: str) -> None:
        """Start a process, and wait until it is ready."""
        self.process(name, **self.settings(name, over_redis, **more))
        await self.until_ready(name)

    def settings(self, name: str, over_redis: bool = True, **more: str) -> dict[str, str]:
        """What is in a process's configuration."""
        settings = {"catalogue": "[caches, typing]", **more}
        if over_redis:
            settings["redis"] = f"{{path: {self.redis.path}{self.more_of_redis}}}"
        if name != "master":
            url = f"http://127.0.0.1:{self.http['master']}"
            settings["master"] = f"{{port: {self.port}, http_url: '{url}'}}"
        return settings

    async def types(self, *users: str) -> int:
        """Somebody types; the token."""
        (token,) = await self.append("w1", "typing", [ROOM, list(users)])
        return int(token)

    async def all_have(self, token: int, *names: str) -> None:
        """Wait until processes are at a token, live or by catching up."""
        for name in names or ("master", "w1", "w2", "w3"):

            async def there(name: str = name) -> bool:
                return bool(await self.position(name) == token)

            await self.until(there)

    async def position(self, name: str) -> Any:
        """Where the writer stands in a process."""
        stream = (await self.ask(name, "/status"))["streams"].get("typing", {"writers": {}})
        at = stream["writers"].get("w1", stream["writers"].get("(all)"))
        return at["position"] if isinstance(at, dict) else at

    async def count(self, name: str, what: str) -> int:
        """A count of a worker's, of this stream."""
        counts = (await self.ask(name, "/status"))["counts"]
        return int(counts[what].get("typing", 0))

    async def updates(self, name: str, stream: str = "typing", writer: str = "writer=w1&") -> Any:
        """What a process gives out of the stream."""
        path = f"/_synapse/replication/get_repl_stream_updates/{stream}"
        answer = await self.ask(name, f"{path}?{writer}rows=current&from_token=0&upto_token=99")
        return answer["updates"] if isinstance(answer, dict) else answer[:2]


class Typing(MemoryCase):
    """Everything in one channel."""

    async def test_all_processes_receive_the_facts_on_either_transport(self) -> None:
        for user in ("@a:b", "@c:d"):
            token = await self.types(user)
        await self.all_have(token)
        await self.wait("master", "typing", "", token)  # the linear view, too
        # Its writer gives it out, and the master for those who cannot reach that one.
        both = [[1, [ROOM, ["@a:b"]]], [2, [ROOM, ["@c:d"]]]]
        for name in ("w1", "master"):
            self.assertEqual(await self.updates(name), both, name)
        self.assertEqual(await self.updates("w1", writer=""), both)
        self.assertEqual(await self.updates("w1", "orders"), (400, "UnknownStream"))
        # Who comes later is given the same, by the master.
        for name, over_redis in (("w4", True), ("w5", False)):
            await self.join(name, over_redis)
            await self.all_have(token, name)
            self.assertEqual(await self.count(name, "fetched_rows"), 2, name)
            self.assertEqual(await self.count(name, "resets"), 0, name)
        await self.join("w6", over_redis=False, dialect="legacy")
        await self.all_have(token, "w6")
        self.assertEqual(await self.count("w6", "rows"), 2)

    async def test_a_restarted_writer_resets_the_stream_for_all(self) -> None:
        for user in ("@a:b", "@c:d", "@e:f"):
            token = await self.types(user)
        await self.all_have(token)
        await self.processes["w1"].kill()
        await self.join("w1")
        await self.all_have(0, "master")
        token = await self.types("@g:h")
        self.assertEqual(token, 1)
        await self.all_have(token)
        for name in ("w2", "w3"):
            self.assertEqual(await self.count(name, "resets"), 1, name)
        self.assertEqual(await self.updates("master"), [[1, [ROOM, ["@g:h"]]]])

    async def test_facts_missed_on_the_bus_are_skipped_and_reported(self) -> None:
        await self.all_have(await self.types("@a:b"))
        self.redis.stop()
        token = await self.types("@c:d")  # which nobody hears
        self.redis.start()
        await self.all_have(token)
        for name in ("w2", "w3"):
            self.assertEqual(await self.count(name, "resets"), 1, name)
        self.assertEqual(await self.count("w1", "resets"), 0)  # it has it still
        self.assertEqual(await self.updates("master"), (410, "Trimmed"))
        await self.all_have(await self.types("@e:f"))

    async def test_a_second_process_of_the_same_name_refuses_appends(
        self,
    ) -> None:
        second = self.process("w1", **self.settings("w1"))
        await second.stderr_containing("another process is 'w1' there")

        async def refused() -> bool:
            answer = await self.append("w1", "typing", [ROOM, []])
            return bool(answer[:2] == (503, "NameTaken"))

        await self.until(refused)


class TypingOnAChannelOfItsOwn(MemoryCase):
    """Each stream in a channel of its own."""

    more_of_redis = ", channel_per_stream: true"

    async def test_all_processes_receive_the_facts(self) -> None:
        await self.all_have(await self.types("@a:b"))
        await self.all_have(await self.types("@c:d"))

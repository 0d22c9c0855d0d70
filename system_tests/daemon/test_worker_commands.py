"""Commands that handlers send, from real workers over TCP and over a real Redis."""

from __future__ import annotations

import json
import re
from typing import Any

from synrepl.testing.redis import RedisTestServer
from tests.cli.cli_case import Command
from tests.daemon.writers_case import WritersCase

#: Calls, and what others hear of them; with the dialects that have them, where not all do.
CALLS = [
    (["user_sync", "@u:x", True], r"USER_SYNC w1 @u:x None start \d+"),
    (["user_sync", "@v:x", True], r"USER_SYNC w1 @v:x None start \d+"),
    (["user_sync", "@u:x", False], r"USER_SYNC w1 @u:x None end \d+"),
    (["remote_server_up", "far.example"], "REMOTE_SERVER_UP far.example"),
    (["federation_ack", 0], "FEDERATION_ACK w1 0"),
    (
        ["user_ip", "@u:x", "t", "::1", "curl", "D"],
        r'USER_IP @u:x \["t","::1","curl","D",\d+\]',
    ),
]
PUSHER = (["remove_pusher", "app", "key", "@u:x"], "REMOVE_PUSHER app key @u:x")


class CommandsCase(WritersCase):
    """A master that listens, and a worker that speaks."""

    stream_writers = "{orders: [master]}"

    def speaker(self) -> str:
        """The configuration of a worker's handler."""
        return f"{{class: 'system_tests.daemon.command_handlers:CommandSender', config: {{path: {self.path('no')}}}}}"

    def listener(self, name: str) -> str:
        """The configuration of a handler that writes into the file of a process."""
        config = f"{{path: {self.path(name)}}}"
        return (
            f"{{class: 'system_tests.daemon.command_handlers:CommandRecorder', config: {config}}}"
        )

    def path(self, name: str) -> Any:
        """A file of the test's directory."""
        return self.directory / f"{name}.heard"

    def received(self, name: str) -> list[str]:
        """The commands that a process has received."""
        path = self.path(name)
        return path.read_text().splitlines() if path.exists() else []

    async def until_received(self, name: str, *patterns: str) -> None:
        """Wait until the last lines are these, in any order of the sources."""

        async def is_received() -> bool:
            lines = self.received(name)
            return len(lines) >= len(patterns) and all(
                any(re.fullmatch(pattern, line) for line in lines) for pattern in patterns
            )

        await self.until(is_received)

    async def call(self, *calls: list[Any]) -> None:
        """Have the worker's handler call its commands."""
        await self.append("master", "orders", *([json.dumps(each), 1, None] for each in calls))

    async def syncing(self, name: str = "master") -> Any:
        """How many users sync, by the status of a process."""
        return (await self.ask(name, "/status"))["syncing_users"]

    async def until_syncing(self, by_instance: dict[str, int], name: str = "master") -> None:
        """Wait until a process says that so many users sync."""

        async def they_do() -> bool:
            users = await self.syncing(name)
            return bool(users["by_instance"] == by_instance)

        await self.until(they_do)

    async def stop(self, process: Command) -> None:
        """Stop a process in an orderly way."""
        process.signal("TERM")
        self.assertEqual((await process.done()).code, 0)


class OverTcp(CommandsCase):
    async def test_each_command_gets_to_the_masters_handler(self) -> None:
        await self.spoken("auto")

    async def test_each_command_gets_there_in_the_legacy_dialect(self) -> None:
        await self.spoken("legacy")

    async def test_each_command_gets_there_in_the_transitional_dialect(self) -> None:
        await self.spoken("transitional")

    async def spoken(self, dialect: str) -> None:
        listener = f"{{port: {self.port}, dialect: transitional}}"
        if dialect != "transitional":
            listener = f"{{port: {self.port}}}"
        master = await self.begin(
            "master", handlers=f"[{self.listener('master')}]", listeners=f"[{listener}]"
        )
        worker = await self.begin("w1", dialect=dialect, handlers=f"[{self.speaker()}]")
        calls = [*CALLS, PUSHER]
        if dialect != "auto":
            calls.append(
                (
                    ["invalidate_cache", "get_user", ["@u:x"]],
                    'INVALIDATE_CACHE get_user \\["@u:x"\\]',
                )
            )
        await self.call(*(call for call, _ in calls))
        named = [pattern for _, pattern in calls]
        if dialect == "legacy":  # it names no instance
            named = [pattern.replace(" w1 ", r" \(unnamed\) ") for pattern in named]
        await self.until_received("master", *(f"w1: {pattern} \\| .*" for pattern in named))
        instance = "(unnamed)" if dialect == "legacy" else "w1"
        await self.until_syncing({instance: 1})
        shown = await self.run_command("status", "-c", self.directory / "master.yaml")
        self.assertIn(f"1 users are syncing: {instance} 1", shown.out)
        self.assertEqual(self.received("no"), [])
        await self.stop(worker)
        await self.until_syncing({})
        await self.stop(master)

    async def test_users_sync_again_after_the_master_was_restarted(self) -> None:
        master = await self.begin("master", handlers=f"[{self.listener('master')}]")
        await self.begin("w1", handlers=f"[{self.speaker()}]")
        await self.call(["user_sync", "@u:x", True], ["user_sync", "@v:x", True])
        await self.until_syncing({"w1": 2})
        await self.stop(master)
        self.path("master").unlink()
        await self.begin("master", handlers=f"[{self.listener('master')}]")
        await self.until_syncing({"w1": 2})
        await self.until_received(
            "master",
            r"w1: USER_SYNC w1 @u:x None start \d+ \| .*",
            r"w1: USER_SYNC w1 @v:x None start \d+ \| .*",
        )

    async def test_a_killed_worker_syncs_nobody_and_a_refusal_is_named(self) -> None:
        await self.begin("master", handlers=f"[{self.listener('master')}]")
        worker = await self.begin("w1", handlers=f"[{self.speaker()}]")
        await self.call(["user_sync", "@u:x", True], ["invalidate_cache", "c", []])
        await self.until_syncing({"w1": 1})
        await worker.kill()
        await self.until_received("master", r"w1: CLEAR_USER_SYNC w1 \| ")
        await self.until_syncing({})
        (refusal,) = self.received("no")
        self.assertRegex(refusal, "CommandNotInDialect: INVALIDATE_CACHE cannot be sent")

    async def test_the_masters_own_handlers_send_them_as_well(self) -> None:
        # A handler of a master gets no facts, so this one speaks in on_start.
        config = f"{{path: {self.path('no')}}}"
        eager = f"{{class: 'system_tests.daemon.command_handlers:SendOnStart', config: {config}}}"
        await self.begin("master", handlers=f"[{eager}, {self.listener('master')}]")
        await self.until_received(
            "master", r"master: USER_SYNC master @boss:x None start \d+ \| @boss:x"
        )
        await self.until_syncing({"master": 1})


class OverRedis(CommandsCase):
    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.redis = RedisTestServer()
        self.addCleanup(self.redis.close)
        self.over_redis = f"{{path: {self.redis.path}}}"

    async def join(self, name: str, handler: str) -> Command:
        """Start a process on Redis."""
        process = self.process(name, redis=self.over_redis, handlers=f"[{handler}]")
        await self.until_ready(name)
        return process

    async def test_everybody_hears_each_command_and_knows_who_syncs(self) -> None:
        await self.join("master", self.listener("master"))
        await self.join("w2", self.listener("w2"))
        worker = await self.join("w1", self.speaker())
        await self.call(*(call for call, _ in [*CALLS, PUSHER]))
        patterns = [pattern for _, pattern in CALLS]
        await self.until_received("master", *(f"bus: {pattern} \\| .*" for pattern in patterns))
        not_ip = [pattern for pattern in patterns if "USER_IP" not in pattern]
        await self.until_received("w2", *(f"master: {pattern} \\| .*" for pattern in not_ip))
        for name in ("master", "w1", "w2"):
            await self.until_syncing({"w1": 1}, name)
        (refusal,) = self.received("no")
        self.assertRegex(refusal, "CommandNotInDialect: REMOVE_PUSHER .* current dialect")
        await self.stop(worker)
        for name in ("master", "w2"):
            await self.until_syncing({}, name)

    async def test_a_newcomer_learns_who_syncs_and_a_restart_of_redis_changes_nothing(
        self,
    ) -> None:
        master = await self.join("master", self.listener("master"))
        worker = await self.join("w1", self.speaker())
        await self.begin("w3", handlers=f"[{self.speaker()}]")  # over TCP
        await self.call(["user_sync", "@u:x", True])
        both = {"w1": 1, "w3": 1}
        await self.until_syncing(both)
        await self.join("w2", self.listener("w2"))
        await self.until_syncing(both, "w2")
        await self.stop(master)
        await self.until_syncing({"w1": 1}, "w2")
        await self.join("master", self.listener("master"))
        for name in ("master", "w1", "w2"):
            await self.until_syncing(both, name)
        self.redis.stop()
        await self.until_syncing({"w3": 1})
        self.redis.start()
        for name in ("master", "w1", "w2"):
            await self.until_syncing(both, name)
        # One that was killed is known to be gone once its successor has joined.
        await worker.kill()
        await self.join("w1", self.listener("w1"))
        await self.until_syncing({"w3": 1}, "w2")

    async def test_users_of_a_killed_process_stay_until_a_clear_user_sync_for_it(self) -> None:
        await self.join("master", self.listener("master"))
        worker = await self.join("w1", self.speaker())
        await self.call(["user_sync", "@u:x", True])
        await self.until_syncing({"w1": 1})
        await worker.kill()
        await self.join("w2", self.listener("w2"))  # which asks everybody
        self.assertEqual((await self.syncing())["by_instance"], {"w1": 1})
        self.redis.command("PUBLISH", "example.com", "CLEAR_USER_SYNC w1")
        await self.until_syncing({})

"""Workers that die, hang or stop moving, as real processes: their master says so everywhere."""

from __future__ import annotations

import signal
from typing import Any

from system_tests.daemon.shop_case import ShopCase

#: So that a sign of life is due every half second, and soon missed.
FOLLOWERS = "{silent_after: 2s, stuck_after: 2s, required: %s}"
LEASE = {"lease": "2s"}


class FollowersCase(ShopCase):
    """A master that soon misses its workers."""

    required = "false"

    async def begin(self, name: str, **settings: str) -> Any:
        if name == "master":
            settings = {"followers": FOLLOWERS % self.required, **settings}
        return await super().begin(name, **settings)

    async def health(self, name: str = "w1") -> Any:
        followers = (await self.ask("master", "/status"))["named_followers"]
        return next((one["health"] for one in followers if one["name"] == name), None)

    async def until_health(self, health: str) -> None:
        async def is_so() -> bool:
            return bool(await self.health() == health)

        await self.until(is_so)


class Warnings(FollowersCase):
    """By default the master stays ready: it accepts facts, whatever its followers do."""

    async def test_a_worker_that_hangs_or_is_killed_is_missing(self) -> None:
        worker = await self.worker(**LEASE)
        await self.until_health("ok")
        worker.signal("STOP")
        await self.until_health("missing")
        worker.signal(signal.SIGCONT)
        await self.until_health("ok")
        await self.stop(worker, "KILL")
        await self.until_health("missing")
        ready = await self.ask("master", "/ready")
        self.assertEqual((ready["ready"], ready["reasons"]), (True, []))
        self.assertRegex(ready["warnings"][0], "follower w1 is missing: no sign of it for")
        metrics = await self.text("master", "/metrics")
        self.assertIn('synrepl_named_follower_missing{follower="w1"} 1.0', metrics)
        done = await self.run_command("status", "-c", self.directory / "master.yaml")
        self.assertEqual(done.code, 0, done.err)
        self.assertRegex(done.out, r"warning: follower w1 is missing")
        self.assertRegex(done.out, r"(?m)^w1 +missing ")
        self.assertIn("follower w1 is missing", self.processes["master"].err.decode())

    async def test_a_worker_whose_handler_is_stuck_is_stuck(self) -> None:
        await self.worker(self.mailer(), **LEASE)
        await self.wait("w1", "orders", "master", await self.order("o1"))
        self.touch("mail.closed")
        await self.order("o2", "o3")
        await self.until_health("stuck")
        ready = await self.ask("master", "/ready")
        self.assertRegex(
            ready["warnings"][0], "w1 is stuck: it is at 1 in orders of master, which is at 3"
        )
        self.assertIn("held up by mail", ready["warnings"][0])
        self.file("mail.closed").unlink()
        await self.until_health("ok")


class Required(FollowersCase):
    """A master that needs its workers."""

    required = "true"

    async def test_it_is_not_ready_while_one_is_missing(self) -> None:
        worker = await self.worker(**LEASE)
        await self.until_health("ok")
        await self.stop(worker, "TERM")
        await self.until_health("missing")
        status, _, ready = await self.ask("master", "/ready")
        self.assertEqual((status, ready["ready"], ready["warnings"]), (503, False, []))
        self.assertRegex(ready["reasons"][0], "follower w1 is missing")

"""Dead letters of facts that a failover has lost, under whole processes."""

from __future__ import annotations

import json

from system_tests.daemon.test_failover import FailoverShop


class DeadLetters(FailoverShop):
    async def test_the_commands_tell_of_the_loss_and_do_not_replay_it(self) -> None:
        await self.worker(self.mailer(cls="LossRecordingMailer", on_failure="{attempts: 1}"))
        kept = await self.order("k1")
        await self.wait("w1", "orders", "master", kept)
        await self.until_true(self.servers.has_caught_up)
        self.servers.disconnect()
        await self.until_true(self.servers.is_disconnected)
        closed = self.touch("mail.closed")
        await self.order("bad1")  # the handler has it, and fails once its server is gone
        await self.until_true(lambda: self.recorded_by_master() > kept)
        self.servers.fail_over()
        new = await self.ordered("new")
        closed.unlink()
        await self.wait("w1", "orders", "master", new)
        config = ("-c", self.file("w1.yaml"))
        done = await self.run_command("dead-letters", "list", *config, "--json")
        (letter,) = json.loads(done.out)["dead_letters"]
        self.assertEqual((letter["token"], letter["lost"]), (kept + 1, True))
        done = await self.run_command("dead-letters", "list", *config)
        self.assertRegex(done.out, r"(?m)^mail +orders +master +2 .* lost by a failover$")
        done = await self.run_command("dead-letters", "replay", *config, "--all")
        self.assertEqual(done.code, 1)
        self.assertIn("has lost the facts of these dead letters: 2 of orders;", done.err)
        done = await self.run_command("dead-letters", "discard", *config, "--all")
        self.assertEqual(done.out, "1 dead letters are discarded\n")

    def recorded_by_master(self) -> int:
        """The position of the master's facts on record at the primary."""
        ((position,),) = self.sql(
            "SELECT position FROM synrepl._writers WHERE stream = 'orders' AND writer = 'master'"
        )
        return int(position)

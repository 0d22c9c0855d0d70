"""A failover that loses commits, under whole processes: a master, workers, and plain SQL."""

from __future__ import annotations

import json
from typing import Any

import psycopg2

from synrepl.core.tokens import Range
from synrepl.storage.incarnations import MARGIN
from system_tests.daemon.shop_case import ShopCase
from tests.storage.failover import TwoServers

APPEND = "SELECT synrepl.append('orders', %s)"


class FailoverShop(ShopCase):
    """A shop on a primary and an asynchronous standby."""

    timeout = 180

    async def make_database(self) -> str:
        self.servers = TwoServers(self)
        return self.servers.dsn

    async def doctor(self) -> str:
        """What ``synrepl doctor database`` says, on one line."""
        done = await self.run_command("doctor", "database", "-c", self.directory / "master.yaml")
        return " ".join(done.out.split())

    async def lose(self, worker: str = "w1", by: str = "master") -> tuple[int, int]:
        """Orders k1 to k3 survive, l1 to l9 are announced and lost; the last token of each."""
        kept = await self.order("k1", "k2", "k3", at=by)
        await self.wait(worker, "orders", by, kept)
        await self.until_true(lambda: self.recorded(worker) >= kept)
        await self.until_true(self.servers.has_caught_up)
        self.servers.disconnect()
        await self.until_true(self.servers.is_disconnected)
        lost = await self.order(*(f"l{n}" for n in range(1, 10)), at=by)
        await self.wait(worker, "orders", by, lost)
        await self.until_true(lambda: "l9" in self.orders_of())
        return kept, lost

    def recorded(self, worker: str) -> int:
        """The least position of a worker's handlers on record."""
        sql = "SELECT min(position) FROM synrepl._handler_positions WHERE follower = %s"
        ((position,),) = self.sql(f"{sql} AND stream = 'orders' AND writer <> 'sql'", worker)
        return int(position or 0)

    async def ordered(self, *names: str, at: str = "master") -> int:
        """Append orders, and try again for as long as that is refused by a 503; the last token."""

        async def ask() -> Any:
            answer = await self.append(at, "orders", *([name, 1, None] for name in names))
            if isinstance(answer, tuple):
                self.assertEqual(answer[0], 503, answer)
                return None
            return answer

        return int((await self.until(ask))[-1])

    def losses(self, name: str = "mail") -> list[tuple[str, Range]]:
        """The losses that were reported to a mailer: writers and ranges."""
        path = self.file(f"{name}.lost")
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [(w, Range(int(a), int(b))) for w, a, b in (line.rsplit(" ", 2) for line in lines)]

    def careful(self) -> str:
        return self.mailer(cls="LossRecordingMailer")

    async def until_all_is_well(self, token: int, writer: str = "master") -> None:
        """The new order is everywhere, nothing that is left is missing, nothing is doubled."""
        await self.wait("w1", "orders", writer, token)
        left = [
            row[0] for row in self.sql("SELECT order_id FROM synrepl.orders ORDER BY stream_id")
        ]
        self.assertEqual(self.in_totals(), left)
        self.assertTrue(set(left) <= set(self.orders_of()))
        self.assertTrue({"k1", "k2", "k3", "new"} <= set(left))
        self.assertFalse(any(name.startswith("l") for name in left))


class Workers(FailoverShop):
    """A worker with a plain and a transactional handler."""

    async def test_handlers_learn_of_the_loss_while_the_master_keeps_running(self) -> None:
        await self.worker(self.careful(), self.totals())
        kept, lost = await self.lose()
        self.servers.fail_over()
        new = await self.ordered("new")
        self.assertGreater(new, lost + MARGIN - 1)
        await self.until_all_is_well(new)
        ((writer, loss),) = self.losses()
        self.assertEqual((writer, loss.upto), ("master", lost))
        self.assertLessEqual(loss.after, kept + 1)
        await self.until_ready("master")
        await self.until_ready("w1")
        database = (await self.ask("master", "/status"))["database"]
        self.assertEqual(database, {"state": "ok", "incarnation": 2, "failovers": 1})
        self.assertIn("synrepl_database_incarnation 2.0", await self.text("master", "/metrics"))
        doctor = await self.doctor()
        self.assertNotIn("nothing is wrong in the database", doctor)
        self.assertIn(f"orders by master may lack facts above {loss.after} up to {lost}", doctor)
        self.assertIn("(notified: w1/mail)", doctor)

    async def test_handlers_learn_of_the_loss_when_the_master_restarts(self) -> None:
        await self.worker(self.careful(), self.totals())
        _, lost = await self.lose()
        await self.stop(self.processes["master"], "KILL")
        self.servers.fail_over()
        await self.begin("master")
        new = await self.ordered("new")
        self.assertGreater(new, lost)
        await self.until_all_is_well(new)
        self.assertIn(("master", lost), [(w, loss.upto) for w, loss in self.losses()])

    async def test_handlers_learn_of_the_lost_facts_of_a_second_writer(self) -> None:
        await self.worker(self.careful(), self.totals())
        await self.worker(self.mailer("other"), name="w2")
        _, lost = await self.lose(by="w2")
        self.servers.fail_over()
        new = await self.ordered("new", at="w2")
        self.assertGreater(new, lost)
        await self.until_all_is_well(new, "w2")
        # The master may have been moved on over the same tokens, and whose tokens they are is not known.
        self.assertIn(("w2", lost), [(w, loss.upto) for w, loss in self.losses()])

    async def test_plain_sql_is_refused_after_a_failover_until_a_master_starts(self) -> None:
        await self.worker(self.careful(), self.totals())
        _, lost = await self.lose()
        await self.stop(self.processes["master"], "KILL")
        self.servers.fail_over()
        order = '[{"order_id": "new", "amount": 1}]'
        error = self.assertRaises(psycopg2.Error, self.sql, APPEND, order)
        self.assertEqual(error.pgcode, "SY009")
        await self.begin("master")
        ((token,),) = self.sql(APPEND, order)
        self.assertGreater(token, lost)
        await self.until_all_is_well(token, "sql")

    async def test_a_worker_that_was_away_learns_of_the_loss(self) -> None:
        worker = await self.worker(self.careful(), self.totals())
        kept, lost = await self.lose()
        await self.stop(worker, "TERM")
        self.servers.fail_over()
        new = await self.ordered("new")
        await self.worker(self.careful(), self.totals())
        await self.until_all_is_well(new)
        losses = dict(self.losses())
        self.assertLessEqual(losses["master"].after, kept + 1)
        self.assertGreaterEqual(losses["master"].upto, lost)
        notified = self.sql(
            "SELECT handler, lost_upto FROM synrepl._losses_told WHERE writer = 'master'"
        )
        self.assertEqual(notified, [("mail", losses["master"].upto)])
        await self.stop(self.processes["w1"], "TERM")
        await self.worker(self.careful(), self.totals())
        await self.wait("w1", "orders", "master", await self.order("later"))
        self.assertEqual(dict(self.losses()), losses)  # it is notified once

    async def test_a_handler_without_the_parameter_lost_is_notified_of_a_loss(self) -> None:
        await self.worker(self.mailer(cls="MailerWithoutRanges"), self.totals())
        await self.lose()
        self.servers.fail_over()
        await self.until_all_is_well(await self.ordered("new"))
        self.assertTrue(self.file("mail.lost").read_text().startswith("master "))


class Operators(FailoverShop):
    """A failover while no master runs."""

    async def test_an_operator_confirms_the_server(self) -> None:
        await self.worker(self.careful(), self.totals())
        await self.lose()
        await self.stop(self.processes["master"], "KILL")
        self.servers.fail_over()
        self.assertIn("was promoted or restored", await self.doctor())

        async def is_unconfirmed() -> bool:
            _, _, ready = await self.ask("w1", "/ready")
            return "is not confirmed" in str(ready)

        await self.until(is_unconfirmed)
        configuration = self.directory / "master.yaml"
        done = await self.run_command("schema", "confirm", "-c", configuration)
        self.assertIn("confirmed, as incarnation 2", done.out)
        self.sql(APPEND, '[{"order_id": "new", "amount": 1}]')
        done = await self.run_command("schema", "confirm", "-c", configuration, "--json")
        self.assertEqual(json.loads(done.out), {"incarnation": 2, "confirmed_now": False})

    async def test_refuses_the_former_server(self) -> None:
        await self.lose_nothing()
        self.servers.fail_over()
        await self.ordered("new")
        self.servers.standby.stop()
        self.servers.primary.start()

        async def is_unconfirmed() -> bool:
            answer = await self.ask("master", "/ready")
            return "the server from before a failover" in str(answer)

        await self.until(is_unconfirmed)
        answer = await self.append("master", "orders", ["old", 1, None])
        self.assertEqual(answer[0], 503)
        self.assertEqual((await self.ask("master", "/status"))["database"]["state"], "unconfirmed")

    async def lose_nothing(self) -> None:
        await self.order("k1")
        await self.until_true(self.servers.has_caught_up)

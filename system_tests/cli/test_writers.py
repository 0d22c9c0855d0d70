"""``synrepl writers``, on processes that go on writing."""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.defer import Deferred

from tests.cli.cli_case import CommandResult
from tests.daemon.writers_case import WritersCase


class AppendLoad:
    """Appends at a process, one after the other, until it is stopped.

    :ivar tokens: of the facts that were appended
    :ivar refused: the other answers
    """

    def __init__(self, case: WritersCase, name: str) -> None:
        self._case = case
        self._name = name
        self._on = True
        self.tokens: list[int] = []
        self.refused: list[tuple[int, str, str]] = []
        self._ended = Deferred.fromCoroutine(self._run())

    async def stop(self) -> None:
        """Wait for its last answer."""
        self._on = False
        await self._ended

    async def reaches(self, count: int) -> None:
        """Wait until so many more facts have been appended."""
        goal = len(self.tokens) + count

        async def reached() -> bool:
            return len(self.tokens) >= goal

        await self._case.until(reached)

    async def is_refused(self) -> None:
        """Wait until an append has been refused."""

        async def refused() -> bool:
            return bool(self.refused)

        await self._case.until(refused)

    async def _run(self) -> None:
        while self._on:
            answer = await self._case.append(self._name, "orders", ["o", 1, None], ["o", 2, None])
            if isinstance(answer, list):
                self.tokens += answer
            else:
                self.refused.append(answer)


class WritersChange(WritersCase):
    """Draining, removing and adding writers."""

    async def state_of(self, writer: str) -> Any:
        """A writer of orders, from ``list --all``."""
        done = await self.writers("list", "orders", "--all", "--json")
        self.assertEqual((done.code, done.err), (0, ""))
        return next(each for each in json.loads(done.out)["writers"] if each["writer"] == writer)

    async def test_drains_and_removes_a_writer_under_load(self) -> None:
        await self.begin_all()
        loads = {name: AppendLoad(self, name) for name in ("master", "w1", "w2")}
        for load in loads.values():
            await load.reaches(10)
        done = await self.writers("drain", "orders", "w2")
        self.assertEqual(
            done, CommandResult(0, "w2 is drained: all its tokens of orders are settled\n", "")
        )
        count = len(loads["w2"].tokens)
        await loads["w1"].reaches(10)
        await loads["w2"].is_refused()
        await loads["w2"].stop()
        # One answer may have been in flight.
        self.assertLessEqual(len(loads["w2"].tokens) - count, 2)
        code, error, message = loads["w2"].refused[-1]
        self.assertEqual((code, error), (409, "WriterDrained"))
        self.assertIn("writer 'w2' of stream 'orders' is drained", message)
        done = await self.run_command(
            *("append", "-c", self.directory / "w2.yaml", "orders", "--timeout", "600"),
            stdin=b'["o", 4]\n',
        )
        self.assertEqual((done.code, done.out), (1, ""))  # at once, because retrying does not help
        self.assertIn("append at 'master' or 'w1', or let this one write again", done.err)

        done = await self.writers("remove", "orders", "w2")
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn("writer 'w2' of stream 'orders' lives, it is 'w2' (process ", done.err)
        self.processes["w2"].signal("TERM")
        self.assertEqual((await self.processes["w2"].done()).code, 0)
        done = await self.writers("remove", "orders", "w2")
        self.assertEqual(done, CommandResult(0, "w2 is removed from orders; its facts stay\n", ""))
        self.assertEqual((await self.state_of("w2"))["state"], "removed")

        # The linear view continues, and no writer has lost a fact.
        await loads["w1"].reaches(10)
        await loads["master"].reaches(10)
        for load in loads.values():
            await load.stop()
        last = max(max(load.tokens) for load in loads.values())
        await self.wait("master", "orders", "", last)
        await self.wait("w1", "orders", "w2", loads["w2"].tokens[-1])
        self.assertEqual((await self.orders())["held_by"], [])
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT stream_id FROM synrepl.orders ORDER BY 1")
            stored = [token for (token,) in cursor.fetchall()]
        self.assertEqual(stored, sorted(token for load in loads.values() for token in load.tokens))

        # A process that is configured as the removed writer is refused, until it is added.
        done = await self.process("w2").done()
        self.assertEqual(done.code, 1)
        self.assertIn("writer 'w2' of stream 'orders' was removed", done.err)
        done = await self.writers("add", "orders", "w2")
        self.assertEqual(done, CommandResult(0, "w2 may write to orders\n", ""))
        await self.begin("w2")
        (token,) = await self.append("w2", "orders", ["o", 3, None])
        await self.wait("w1", "orders", "w2", token)

    async def test_removes_a_writer_that_was_killed(self) -> None:
        await self.begin_all()
        (token,) = await self.append("w2", "orders", ["o", 1, None])
        await self.processes["w2"].kill()

        async def is_dead() -> bool:
            return bool((await self.state_of("w2"))["state"] == "dead")

        await self.until(is_dead)
        done = await self.writers("remove", "orders", "w2")
        self.assertEqual(done.code, 0, done.err)
        (above,) = await self.append("w1", "orders", ["o", 2, None])
        await self.wait("master", "orders", "", above)
        # A new worker still gets its facts, from a master that was restarted meanwhile.
        self.processes["master"].signal("TERM")
        await self.processes["master"].done()
        await self.begin("master")
        await self.begin("w3")
        await self.wait("w3", "orders", "w2", token)

    async def test_a_drain_that_takes_too_long_names_what_is_open(self) -> None:
        await self.begin("master")
        connection = self.connect()
        with connection.cursor() as cursor:
            cursor.execute(
                'SELECT synrepl.append(\'orders\', \'[{"order_id": "o", "amount": 1}]\')'
            )
        done = await self.writers("drain", "orders", "sql", "--timeout", "0")
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertRegex(done.err, r"after 0 s this of it is open: backend \d+ .*synrepl\.append")
        self.assertEqual((await self.state_of("sql"))["state"], "draining")
        done = await self.writers("remove", "orders", "sql")
        self.assertEqual(done.code, 1)
        self.assertIn("lives", done.err)
        connection.commit()
        done = await self.writers("drain", "orders", "sql")
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual((await self.state_of("sql"))["state"], "drained")


class WritersList(WritersCase):
    """Listing and adding writers, and refusals."""

    async def test_lists_states_and_positions(self) -> None:
        await self.begin_all()
        await self.append("w1", "orders", ["o", 1, None])
        done = await self.writers("list", "orders")
        self.assertEqual((done.code, done.err), (0, ""))
        heading, *rows = [line.split() for line in done.out.splitlines()]
        self.assertEqual(" ".join(heading), "stream writer state position last reserved held by")
        self.assertEqual(
            [row[:3] for row in rows],
            [
                ["orders", "master", "live"],
                ["orders", "sql", "idle"],
                ["orders", "w1", "live"],
                ["orders", "w2", "live"],
            ],
        )
        self.assertEqual({row[4] for row in rows}, {"1"})
        self.assertRegex(done.out, r"'w1' \(process \d+ on ")
        done = await self.writers("list", "--json")
        streams = {each["stream"] for each in json.loads(done.out)["writers"]}
        self.assertEqual(streams, {"orders", "jobs", "caches"})

    async def test_adds_a_writer_for_plain_sql(self) -> None:
        await self.begin("master")
        for words in ("billing may write to orders", "billing could already write to orders"):
            done = await self.writers("add", "orders", "billing")
            self.assertEqual(done, CommandResult(0, f"{words}\n", ""))
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT synrepl.append('orders',"
                ' \'[{"order_id": "o", "amount": 1}]\', \'billing\')'
            )
        await self.wait("master", "orders", "billing", 1)

    async def test_refuses_unknown_writers_and_streams(self) -> None:
        await self.begin("master", catalogue="[typing]")
        for arguments, words in (
            (("drain", "orders", "nobody"), "stream 'orders' has no writer 'nobody'"),
            (("remove", "orders", "nobody"), "stream 'orders' has no writer 'nobody'"),
            (("remove", "orders", "sql"), "is neither drained nor dead"),
            (("add", "nope", "w1"), "nope"),
            (("add", "orders", "no name"), "writer name 'no name' is not a valid name"),
            (("add", "typing", "w1"), "stream 'typing' is kept in memory"),
        ):
            done = await self.writers(*arguments)
            code = 2 if "not a valid name" in words else 1
            self.assertEqual((done.code, done.out), (code, ""), arguments)
            self.assertIn(words, done.err)

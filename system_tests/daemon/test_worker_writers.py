"""Workers that write: a master and workers as real processes, with a PostgreSQL server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.config.config import load
from synrepl.daemon.config.own_streams import (
    KeptByOne,
    KeptByTheMaster,
    NobodyAnnounces,
    WriterNeedsDatabase,
    own_streams,
)
from tests.daemon.writers_case import WritersCase, ask_handler


class WorkersAsWriters(WritersCase):
    """Facts of workers, announced by the master."""

    async def test_facts_of_one_worker_are_read_at_the_others(self) -> None:
        await self.begin_all()
        (first,) = await self.append("w1", "orders", ["o1", 1, None])
        (second,) = await self.append("w2", "orders", ["o2", 2, None])
        (third,) = await self.append("master", "orders", ["o3", 3, None])
        (job,) = await self.append("w1", "jobs", [7])
        self.assertLess(first, second)
        self.assertLess(second, third)
        # Also the writer itself, to which its own facts come back.
        for name in ("master", "w1", "w2"):
            for writer, token in ("w1", first), ("w2", second), ("master", third):
                await self.wait(name, "orders", writer, token)
            await self.wait(name, "jobs", "w1", job)
        status = await self.orders()
        self.assertEqual(status["position"], third)
        status = await self.ask("w1", "/status")
        self.assertEqual(status["writer"], {"name": "w1", "open": True})

        # Who does not write a stream says who does; a worker that writes takes the rest, too.
        for name in ("master", "w2"):
            code, error, message = await self.append(name, "jobs", [8])
            self.assertEqual((code, error), (409, "NotAWriter"))
            self.assertIn("append at 'w1'", message)
            done = await self.run_command(
                "append",
                "-c",
                self.directory / f"{name}.yaml",
                "jobs",
                "--url",
                f"http://127.0.0.1:{self.http[name]}",
                stdin=b"[9]\n",
            )
            self.assertEqual(done.code, 1)
            self.assertIn("append at 'w1'", done.err)
        done = await self.run_command(
            "append", "-c", self.directory / "w1.yaml", "jobs", stdin=b"[9]\n"
        )
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertEqual(json.loads(done.out), {"stream": "jobs", "writer": "w1", "ids": [2]})
        code, error, _ = await self.append("w1", "orders", ["o4"])
        self.assertEqual((code, error), (400, "BadFact"))

    async def test_a_request_that_is_repeated_elsewhere_names_who_appended(self) -> None:
        await self.begin_all()
        again = {"Idempotency-Key": "k"}
        first = await self.ask("w1", "/streams/orders/facts", [["o1", 1, None]], **again)
        self.assertEqual(first["writer"], "w1")
        for name in ("w2", "master", "w1"):
            answer = await self.ask(name, "/streams/orders/facts", [["o1", 1, None]], **again)
            self.assertEqual(answer, {**first, "replayed": True})
        # Who waits for that writer has read the fact.
        await self.wait("w2", "orders", first["writer"], first["ids"][0])

    async def test_one_that_is_killed_in_mid_transaction_holds_only_the_linear_view(self) -> None:
        await self.begin_all()
        (first,) = await self.append("w1", "orders", ["o1", 1, None])
        await self.wait("w2", "orders", "w1", first)
        gate = self.connect()
        self.close(gate)
        slow = Deferred.fromCoroutine(self.append_in_vain("w1"))

        async def held() -> Any:
            status = await self.orders()
            return status if status["held_by"] == ["w1"] else None

        await self.until(held)
        # Modern followers go on ...
        (more,) = await self.append("w2", "orders", ["o2", 2, None])
        self.assertGreater(more, first + 1)
        for name in ("master", "w2"):
            await self.wait(name, "orders", "w2", more)
        # ... the linear view waits, and says for whom: also when the process is dead, for its
        # transaction is not.
        await self.processes["w1"].kill()
        await slow
        status = await self.until(held)
        self.assertEqual(status["position"], first)
        self.assertEqual(status["oldest_open_reservation"]["writer"], "w1")
        code, error, message = await self.ask(
            "master", f"/streams/orders/wait?token={more}&timeout=0"
        )
        self.assertEqual((code, error), (504, "WaitTimedOut"))
        self.assertIn("held by writer 'w1'", message)

        gate.rollback()
        await self.wait("master", "orders", "", more)
        self.assertEqual((await self.orders())["held_by"], [])

    def close(self, gate: Any) -> None:
        """Keep the order 'slow', which has its token by then, from being committed."""
        with gate.cursor() as cursor:
            cursor.execute(
                "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
                " 'BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NEW; END'"
            )
            cursor.execute(
                "CREATE TRIGGER wait BEFORE INSERT ON synrepl.orders FOR EACH ROW"
                " WHEN (NEW.order_id = 'slow') EXECUTE FUNCTION wait()"
            )
            gate.commit()
            cursor.execute("SELECT pg_advisory_xact_lock(4711)")

    async def append_in_vain(self, name: str) -> None:
        """Append the order 'slow' at a process that is killed before it answers."""
        try:
            await self.append(name, "orders", ["slow", 0, None])
        except OSError:
            return
        self.fail("it was answered")

    async def test_refuses_a_second_process_of_the_same_name(self) -> None:
        await self.begin_all()
        done = await self.process("w1").done()
        self.assertEqual(done.code, 1)
        self.assertRegex(
            done.err,
            r"synrepl: error: writer 'w1' of stream '\w+' is held by 'w1' \(process \d+ on ",
        )

    async def test_one_that_was_killed_comes_back_as_the_same_writer(self) -> None:
        await self.begin_all()
        (first,) = await self.append("w1", "orders", ["o1", 1, None])
        await self.processes["w1"].kill()
        await self.begin("w1")
        (second,) = await self.append("w1", "orders", ["o2", 2, None])
        self.assertLess(first, second)
        await self.wait("w2", "orders", "w1", second)

    async def test_it_waits_for_the_master_to_make_its_tables(self) -> None:
        early = self.process("w1")
        await early.stderr_containing("waiting for the database")
        done = await self.run_command("schema", "-c", self.directory / "w1.yaml", "--apply", "pre")
        self.assertEqual(done.code, 0, done.err)
        await early.stderr_containing(
            "waiting for the database: stream 'orders' is not in the database yet"
        )
        await self.begin("master")
        await early.stderr_containing("connected to")
        await self.until_ready("w1")
        (token,) = await self.append("w1", "jobs", [1])
        await self.wait("master", "jobs", "w1", token)


class CachesOfWriters(WritersCase):
    """A worker that writes the ``caches`` stream has what changes data."""

    stream_writers = "{caches: [master, w1]}"

    async def test_its_changes_invalidate_caches_in_all_processes(self) -> None:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE users (user_id text PRIMARY KEY, name text NOT NULL)")
            cursor.execute("INSERT INTO users VALUES ('@bob:example.com', 'Bob')")
        for name in ("master", "w1", "w2"):
            socket = self.directory / f"{name}.sock"
            handler = f"{{class: 'tests.daemon.cached_users:Users', config: {{socket: {socket}}}}}"
            # An audit would load Bob once more.
            await self.begin(name, handlers=f"[{handler}]", audit_caches="{every: 0s}")
        for _ in range(2):
            self.assertEqual(await self.names(), [["Bob", 1]] * 3)
        writer, token = await ask_handler(
            self.directory / "w1.sock", "rename", "@bob:example.com", "Robert"
        )
        self.assertEqual(writer, "w1")
        # Here at once; elsewhere once they have followed.
        self.assertEqual(await self.name_at("w1"), ["Robert", 2])
        for name in ("master", "w2"):
            await self.wait(name, "caches", writer, token)
            self.assertEqual(await self.name_at(name), ["Robert", 2])
        # What comes back to the writer is harmless.
        await self.wait("w1", "caches", writer, token)
        self.assertEqual((await self.name_at("w1"))[0], "Robert")

    async def names(self) -> list[Any]:
        """Bob's name, in all processes."""
        return [await self.name_at(name) for name in ("master", "w1", "w2")]

    async def name_at(self, name: str) -> Any:
        """Bob's name in a process, and how often it was loaded there."""
        return await ask_handler(self.directory / f"{name}.sock", "name", "@bob:example.com")


class RefusedWriters(TestCase):
    """Configurations that could not work."""

    def refused(self, error: type[Exception], text: str) -> str:
        """What a configuration is refused with."""
        path = Path(self.mktemp())
        path.write_text(f"server_name: example.com\n{text}")
        config = load([path])
        with self.assertRaises(error) as caught:
            own_streams(config, catalogue(config))
        return str(caught.exception)

    def test_refuses_a_worker_as_writer_of_an_in_memory_stream_over_tcp(self) -> None:
        writers = "stream_writers: {typing: [w1]}\n"
        for text in (
            f"{writers}database: dbname=x\n",
            f"{writers}database: dbname=x\ninstance_name: w1\nmaster: {{port: 1}}\n",
        ):
            message = self.refused(KeptByTheMaster, text)
            self.assertIn("over TCP only the master can write it, not 'w1'", message)
            path = Path(self.mktemp())
            path.write_text(f"server_name: example.com\n{text}redis: {{}}\n")
            config = load([path])
            own = [stream.name for stream in own_streams(config, catalogue(config))]
            self.assertEqual("typing" in own, config.instance_name == "w1")

    def test_refuses_two_writers_of_an_in_memory_stream(self) -> None:
        for more in ("", "redis: {}\n"):
            text = f"stream_writers: {{typing: [master, w1]}}\ndatabase: dbname=x\n{more}"
            self.assertIn("not 'master' and 'w1'", self.refused(KeptByOne, text))

    def test_refuses_a_writer_without_a_database(self) -> None:
        message = self.refused(
            WriterNeedsDatabase,
            "stream_writers: {events: [w1]}\ninstance_name: w1\ncatch_up: http\n"
            "master: {port: 1, http_url: 'http://127.0.0.1:2'}\n",
        )
        self.assertIn("stream_writers.events: 'w1' is this process", message)

    def test_refuses_a_writer_that_follows_a_real_synapse(self) -> None:
        self.refused(
            NobodyAnnounces,
            "stream_writers: {events: [w1]}\ninstance_name: w1\ndatabase: dbname=x\n"
            "master: {port: 1, foreign: true, http_url: 'http://127.0.0.1:2'}\ncatch_up: http\n",
        )

    def test_a_worker_writes_only_streams_that_name_it(self) -> None:
        path = Path(self.mktemp())
        path.write_text(
            "server_name: example.com\ninstance_name: master\ndatabase: dbname=x\n"
            "master: {port: 1}\nstream_writers: {events: [master]}\n"
        )
        config = load([path])
        self.assertEqual([s.name for s in own_streams(config, catalogue(config))], ["events"])

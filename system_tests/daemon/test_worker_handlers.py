"""Handlers of whole workers: a plain and a transactional one in one worker, as in the README."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

from system_tests.daemon.shop_case import ShopCase
from tests.cli.cli_case import CliCase


class HandlersOfKilledWorkers(ShopCase):
    """No handler lacks a fact afterwards, and none of the transactional one's is doubled."""

    async def ended_while_the_mailer_is_behind(self, signal: str) -> None:
        worker = await self.worker(self.mailer(), self.totals())
        first = await self.order("o1", "o2", "o3")
        await self.wait("w1", "orders", "master", first)
        closed = self.touch("mail.closed")
        last = await self.order("o4", "o5", "o6", "o7", "o8")
        await self.until_true(lambda: len(self.in_totals()) == 8)
        await self.stop(worker, signal)
        self.assertEqual(self.orders_of(), ["o1", "o2", "o3"])
        closed.unlink()

        await self.worker(self.mailer(), self.totals())
        await self.wait("w1", "orders", "master", last)
        self.assertEqual(self.in_totals(), [f"o{n}" for n in range(1, 9)])
        self.assertEqual(list(dict.fromkeys(self.orders_of())), [f"o{n}" for n in range(1, 9)])

    async def test_a_kill_while_the_plain_handler_is_behind_loses_nothing(self) -> None:
        await self.ended_while_the_mailer_is_behind("KILL")

    async def test_a_stop_while_the_plain_handler_is_behind_loses_nothing(self) -> None:
        await self.ended_while_the_mailer_is_behind("TERM")

    async def test_repeated_kills_and_stops_under_load_lose_nothing(self) -> None:
        wanted: list[str] = []
        for lap, signal in enumerate(("KILL", "TERM", "KILL", "TERM", "KILL")):
            worker = await self.worker(self.mailer(), self.totals())
            seen = len(self.mails())
            for part in range(6):
                names = [f"o{lap}.{part}.{n}" for n in range(20)]
                wanted += names
                await self.order(*names)
                if part == lap:  # amid its work, wherever it is by then
                    await self.until_true(lambda seen=seen: len(self.mails()) > seen)
                    await self.stop(worker, signal)
        await self.worker(self.mailer(), self.totals())
        await self.wait("w1", "orders", "master", await self.order("last"))
        wanted.append("last")
        self.assertEqual(self.in_totals(), wanted)
        self.assertEqual(list(dict.fromkeys(self.orders_of())), wanted)


class FailingHandlers(ShopCase):
    """A handler that fails is named everywhere in the same words, and holds up no other one."""

    async def test_status_names_a_failing_handler_with_its_fact_error_and_line(self) -> None:
        worker = await self.worker(
            self.mailer(), self.totals(), self.mailer("other", "LenientMailer")
        )
        await self.order("o1", "bad2", "o3")
        sentence = r"handler mail fails at orders \(0, 3\] of master: NoSuchCustomer: nobody has"
        sentence += r" ordered bad2 \(attempt \d+, failing for \d+ s, next attempt in \d+ s\)"

        async def not_ready() -> Any:
            ready = await self.ask("w1", "/ready")
            return ready if isinstance(ready, tuple) and "handler mail" in str(ready) else None

        code, _, answer = await self.until(not_ready)
        self.assertEqual((code, answer["ready"]), (503, False))
        self.assertRegex("; ".join(answer["reasons"]), sentence)
        code, error, answer = await self.ask(
            "w1", "/streams/orders/wait?writer=master&token=3&timeout=0"
        )
        self.assertEqual((code, error), (504, "WaitTimedOut"))
        self.assertIn("the master has announced it up to 3, and handler", answer)
        self.assertRegex(answer, sentence)
        status = await self.ask("w1", "/status")
        failing = {one["handler"]: one for one in status["failing"]}
        self.assertEqual(set(failing), {"mail", "totals"})
        self.assertRegex(failing["mail"]["sentence"], sentence)
        self.assertEqual(
            {key: failing["mail"][key] for key in ("stream", "writer", "after", "upto", "error")},
            {
                "stream": "orders",
                "writer": "master",
                "after": 0,
                "upto": 3,
                "error": "NoSuchCustomer",
            },
        )
        shown = await self.run_command("status", "-c", self.file("w1.yaml"))
        self.assertEqual(shown.code, 1)
        self.assertRegex(" ".join(shown.out.split()), sentence)

        await self.until_true(lambda: self.orders_of("other") == ["o1", "bad2", "o3"])
        log = worker.err.decode()
        self.assertRegex(log, sentence)
        for handler in ("on_rows", "apply"):
            self.assertRegex(log, rf'shop\.py", line \d+, in {handler}\n')
        self.assertEqual(log.count("in on_rows\n"), 1)  # shortly, from the second time on
        self.assertRegex(log, r"handler mail fails at .*; at .*shop\.py:\d+, as before")
        metrics = await self.text("w1", "/metrics")
        self.assertIn('synrepl_handler_failing{handler="mail"} 1.0', metrics)
        self.assertIn('synrepl_handler_failing{handler="other"} 0.0', metrics)

        self.touch("cured")
        await self.wait("w1", "orders", "master", 3)
        self.assertEqual(list(dict.fromkeys(self.orders_of())), ["o1", "bad2", "o3"])
        self.assertEqual(self.in_totals(), ["o1", "bad2", "o3"])
        self.assertEqual((await self.ask("w1", "/status"))["failing"], [])
        await self.until_ready("w1")


class NewHandlers(ShopCase):
    """Handlers that are new to a worker which is not."""

    async def test_status_names_where_handlers_began(self) -> None:
        worker = await self.worker(self.mailer())
        await self.wait("w1", "orders", "master", await self.order("o1", "o2", "o3"))
        await self.stop(worker, "TERM")
        worker = await self.worker(
            self.mailer(),
            self.totals(),
            self.mailer("late", start="now"),
            self.mailer("middle", start="{orders: 1}"),
        )
        await self.wait("w1", "orders", "master", await self.order("o4"))
        self.assertEqual(self.in_totals(), ["o1", "o2", "o3", "o4"])
        self.assertEqual(self.orders_of("late"), ["o4"])
        self.assertEqual(self.orders_of("middle"), ["o2", "o3", "o4"])
        self.assertEqual(self.orders_of(), ["o1", "o2", "o3", "o4"])
        log = worker.err.decode()
        for line in (
            "handler totals joins follower w1: it starts at the oldest fact of orders",
            "handler late joins follower w1: it starts at the worker's position in orders, without",
            "handler late starts at token 3 of orders by master, without facts up to there",
            "handler middle joins follower w1: it starts at token 1 of orders, without facts",
        ):
            self.assertIn(line, log)
        status = await self.ask("w1", "/status")
        began = {
            each["name"]: each["streams"]["orders"]["master"]["started_from"]
            for each in status["handlers"]
        }
        self.assertEqual(began, {"mail": 0, "totals": 0, "late": 3, "middle": 1})
        shown = await self.run_command("status", "-c", self.file("w1.yaml"))
        self.assertRegex(shown.out, r"(?m)^late +per_writer +no +3 in orders of master +0 +0$")
        self.assertRegex(shown.out, r"(?m)^totals +per_writer +yes +oldest fact +0 +0$")


class DeadLetters(ShopCase):
    """From the handler to the command."""

    async def letters(self, *arguments: str) -> Any:
        """What the command lists."""
        done = await self.command("list", "--json", *arguments)
        return json.loads(done)["dead_letters"]

    async def command(self, what: str, *arguments: str, code: int = 0) -> str:
        """What ``synrepl dead-letters`` says."""
        config = ("-c", self.file("w1.yaml"))
        done = await self.run_command("dead-letters", what, *config, *arguments)
        self.assertEqual(done.code, code, done.err)
        return done.err if code else done.out

    async def test_dead_letters_are_stored_listed_replayed_and_discarded(self) -> None:
        policy = "{attempts: 1}"
        await self.worker(self.mailer(on_failure=policy), self.totals(on_failure=policy))
        self.assertEqual(await self.command("list"), "no dead letters\n")
        last = await self.order("o1", "bad2", "o3", "bad4")
        await self.wait("w1", "orders", "master", last)
        mailed = ["o1", "o1", "o3"]  # with the others, and then alone
        self.assertEqual((self.orders_of(), self.in_totals()), (mailed, ["o1", "o3"]))
        found = await self.letters()
        self.assertEqual(
            [(one["handler"], one["token"], one["error"]) for one in found],
            [(name, token, "NoSuchCustomer") for token in (2, 4) for name in ("mail", "totals")],
        )
        self.assertIn("shop.py", found[0]["traceback"])
        self.assertEqual(found[0]["rows"], '[["bad2",1,null]]')
        self.assertRegex(
            await self.command("list", "--handler", "mail"),
            r"(?m)^mail +orders +master +2 +\S+ +1 +NoSuchCustomer: nobody has ordered bad2$",
        )

        async def counted() -> Any:
            status = await self.ask("w1", "/status")
            return status if status["dead_letters"]["count"] == 4 else None

        status = await self.until(counted)
        self.assertEqual([each["dead_letters"] for each in status["handlers"]], [2, 2])
        self.assertEqual(status["dead_letters"]["newest"][0]["error"], "NoSuchCustomer")
        self.assertIn('synrepl_dead_letters{handler="mail"} 2.0', await self.text("w1", "/metrics"))
        shown = await self.run_command("status", "-c", self.file("w1.yaml"))
        self.assertIn("4 dead letters:", shown.out)
        self.assertRegex(shown.out, r"(?m)^totals +orders +master +4 ")

        self.touch("cured")
        said = await self.command("replay", "--token", "2")
        self.assertEqual(said, "replay of 2 dead letters is requested\n")
        await self.until_true(lambda: self.orders_of() == [*mailed, "bad2"])
        await self.until_true(lambda: self.in_totals() == ["o1", "bad2", "o3"])
        self.assertEqual(self.mails()[-1], "master 2 bad2 again")
        said = await self.command("discard", "--all")
        self.assertEqual(said, "2 dead letters are discarded\n")
        self.assertEqual(await self.letters(), [])

    async def test_meaningless_commands_are_refused(self) -> None:
        await self.worker(self.mailer())
        self.assertIn(
            "--handler, --stream, --token, or --all", await self.command("replay", code=1)
        )
        said = await self.command("replay", "--handler", "nobody", code=1)
        self.assertIn("no handler 'nobody', so nothing could be handed to it; it has mail", said)
        done = await self.run_command("dead-letters", "list", "-c", self.file("master.yaml"))
        self.assertEqual(done.code, 2)
        self.assertIn("give a worker's configuration", done.err)


class Views(ShopCase):
    """Handlers with the other view than their connection's, with and without a database."""

    without_database = MappingProxyType(
        {"database": "~", "catch_up": "http", "stream_writers": "{}", "catalogue": "[caches]"}
    )

    async def orders_of_two_writers(self) -> list[str]:
        """Orders at two writers by turns; their order over all writers."""
        await self.worker(name="w2")
        await self.until_ready("w2")
        wanted = []
        for n in range(6):
            wanted.append(f"o{n}")
            await self.order(f"o{n}", at="w2" if n % 2 else "master")
        return wanted

    def over_http(self) -> dict[str, str]:
        """Settings of a worker that has no database."""
        master = f"{{port: {self.port}, http_url: 'http://127.0.0.1:{self.http['master']}'}}"
        return {**self.without_database, "master": master}

    async def linear(self, **settings: str) -> None:
        wanted = await self.orders_of_two_writers()
        await self.worker(self.mailer("plain"), self.mailer("linear", "LinearMailer"), **settings)
        await self.until_true(
            lambda: len(self.orders_of("linear")) == len(self.orders_of("plain")) == len(wanted)
        )
        self.assertEqual(self.orders_of("linear"), wanted)
        self.assertEqual({line.split()[0] for line in self.mails("linear")}, {"-"})
        self.assertEqual({line.split()[0] for line in self.mails("plain")}, {"master", "w2"})
        last = await self.order("last", at="w2")
        await self.wait("w1", "orders", "w2", last)
        self.assertEqual(self.orders_of("linear"), [*wanted, "last"])

    async def test_linear_on_a_modern_connection(self) -> None:
        await self.linear()

    async def test_linear_on_a_modern_connection_without_a_database(self) -> None:
        await self.linear(**self.over_http())

    async def per_writer(self, **settings: str) -> None:
        wanted = await self.orders_of_two_writers()
        await self.worker(
            self.mailer("plain"),
            self.mailer("writers", "PerWriterMailer"),
            dialect="legacy",
            **settings,
        )
        await self.until_true(
            lambda: len(self.orders_of("writers")) == len(self.orders_of("plain")) == len(wanted)
        )
        by_writer = [line.split()[0] + line.split()[2] for line in self.mails("writers")]
        for writer, of in ("master", wanted[::2]), ("w2", wanted[1::2]):
            self.assertEqual(
                [line for line in by_writer if line.startswith(writer)], [writer + o for o in of]
            )
        self.assertEqual({line.split()[0] for line in self.mails("plain")}, {"-"})
        last = await self.order("last", at="w2")
        await self.wait("w1", "orders", "", last)
        self.assertEqual(self.orders_of("writers")[-1], "last")

    async def test_per_writer_on_a_legacy_connection(self) -> None:
        await self.per_writer()

    async def test_per_writer_on_a_legacy_connection_without_a_database(self) -> None:
        await self.per_writer(**self.over_http())


class RefusedHandlers(CliCase):
    """Handlers that a worker cannot serve, at its start and by ``check-config``."""

    async def refused(self, text: str, *wanted: str, role: str = "worker") -> None:
        path = self.directory / f"{role}.yaml"
        head = "server_name: example.com\ninstance_name: w1\n"
        path.write_text(head + text)
        for command in (role, "check-config"):
            done = await self.run_command(command, "-c", path)
            self.assertEqual(done.code, 2, done.err)
            for part in wanted:
                self.assertIn(part, done.err)
            self.assertNotIn("Traceback", done.err)

    async def test_names_the_handler_and_the_reason(self) -> None:
        http = "master: {port: 1, http_url: 'http://127.0.0.1:2'}\ncatch_up: http\n"
        foreign = "master: {port: 1, foreign: true}\ndatabase: dbname=x\ndialect: legacy\n"
        modern = (
            "master: {port: 1, foreign: true, http_url: 'http://127.0.0.1:2'}\ncatch_up: http\n"
        )
        mailer = "class: 'system_tests.daemon.shop:Mailer'"
        for text, *wanted in (
            (http + "handlers: ['system_tests.daemon.shop:Totals']", "it is transactional"),
            (
                f"{http}handlers: [{{{mailer}, on_failure: {{attempts: 3}}}}]",
                "'handlers[0].on_failure': dead letters are stored in the database",
            ),
            (
                foreign + "handlers: ['system_tests.daemon.shop:PerWriterMailer']",
                "it wants the per_writer view, which a real Synapse gives in the modern",
            ),
            (
                modern + "handlers: ['system_tests.daemon.shop:LinearMailer']",
                "it wants the linear view, which a real Synapse gives in the legacy",
            ),
            (
                f"{http}handlers: [{{{mailer}}}, {{{mailer}}}]",
                "two handlers have the name 'system_tests.daemon.shop:Mailer': give one of them another",
            ),
            (http + "handlers: ['system_tests.daemon.shop:Nobody']", "has no attribute 'Nobody'"),
            (http + "handlers: ['tests.cli.cli_case:CommandResult']", "does not implement synrepl.IHandler"),
            (f"{http}handlers: [{{{mailer}, start: later}}]", "'handlers[0].start'", "later"),
            (f"{http}handlers: [{{{mailer}, start: -1}}]", "'handlers[0].start'", "-1"),
            (f"{http}handlers: [{{{mailer}, start: {{orders: x}}}}]", "'handlers[0].start.orders'"),
            (f"{http}handlers: [{{{mailer}, on_failure: {{attempts: 0}}}}]", "attempts"),
            (f"{http}handlers: [{{{mailer}, name: 'a b'}}]", "'handlers[0].name'"),
        ):  # fmt: skip
            with self.subTest(text):
                await self.refused(text, *wanted)
        await self.refused(
            f"database: dbname=x\nhandlers: [{{{mailer}, start: now}}]",
            "'handlers[0]': 'start' and 'on_failure' are for workers",
            role="master",
        )

"""``synrepl check-config`` on what only the whole process makes wrong: streams, writers, handlers."""

from __future__ import annotations

from pathlib import Path

from tests.cli.cli_case import CliCase
from tests.cli.test_cli import WorkingDirectoryCase, run

WORKER = """
server_name: example.com
instance_name: worker1
master: {port: 1, http_url: "http://127.0.0.1:1"}
catch_up: http
catalogue: none
streams: [{name: orders, columns: {order_id: text}}, {name: jobs, columns: {id: bigint}}]
"""


class CheckConfigOfHandlers(WorkingDirectoryCase):
    """Handlers are imported, but not instantiated."""

    def refusal(self, handler: str, more: str = "") -> str:
        """The error message for one handler."""
        path = self.directory / "worker.yaml"
        path.write_text(f"{WORKER}{more}handlers:\n  - {handler}\n")
        result = run("check-config", "-c", path)
        self.assertEqual(result.exit_code, 2, result.output)
        self.assertNotIn("Traceback", result.output)
        line = 9 + more.count("\n")
        begin = f"synrepl: error: {path}:{line}:5: handlers: "
        self.assertTrue(result.stderr.startswith(begin), result.stderr)
        return result.stderr.removeprefix(begin)

    def test_refuses_handlers_that_cannot_be_used(self) -> None:
        for handler, reason in (
            ("nowhere.to.be:Found", "No module named 'nowhere'"),
            ("tests.daemon.bad_handlers:Gone", "has no attribute 'Gone'"),
            (
                "tests.daemon.bad_handlers:NoHandler",
                "it does not implement synrepl.IHandler: inherit from synrepl.Handler",
            ),
            ("tests.daemon.bad_handlers:instance", "it is not a class"),
            (
                "tests.daemon.bad_handlers:Incomplete",
                "no method on_reset(stream, writer, position)",
            ),
            ("tests.daemon.bad_handlers:Incomplete", "its method on_rows must accept (batch), but"),
            ("tests.daemon.bad_handlers:NarrowRows", "its method on_rows must accept (batch), but"),
            ("tests.daemon.bad_handlers:NoApply", "it does not define apply"),
            ("tests.daemon.bad_handlers:AsyncApply", "its method apply must be a plain 'def'"),
            (
                "{class: 'tests.daemon.bad_handlers:IndependentTotals', config: {streams: [orders]}}",
                "it is transactional, and works in the database",
            ),
            ("tests.daemon.bad_handlers:NeedsArgument", "missing a required argument: 'path'"),
            (
                "{class: 'tests.daemon.bad_handlers:Orders', config: {a: 1}}",
                "its 'config' does not fit: got an unexpected keyword argument 'a'",
            ),
            (
                "tests.daemon.bad_handlers:UnknownStreamName",
                "of its 'streams': there is no stream 'ordres'; did you mean orders?",
            ),
            (
                "tests.daemon.bad_handlers:StreamsAsText",
                "must be a set of names, not the text 'orders'",
            ),
            ("tests.daemon.bad_handlers:Totals", "it is transactional, and works in the database"),
        ):
            with self.subTest(handler):
                path = handler.partition("'")[2].partition("'")[0] or handler
                message = self.refusal(handler if handler[0] == "{" else f"'{handler}'")
                self.assertTrue(message.startswith(f"{path} cannot be used: "), message)
                self.assertIn(reason, message)

    def test_accepts_a_class_that_provides_the_interface_without_inheriting(self) -> None:
        path = self.directory / "worker.yaml"
        handler = "{class: 'tests.daemon.bad_handlers:Independent', config: {streams: [orders]}}"
        path.write_text(f"{WORKER}handlers:\n  - {handler}\n")
        result = run("check-config", "-c", path)
        self.assertEqual(result.exit_code, 0, result.output)

    def test_refuses_a_handler_of_streams_that_are_not_followed(self) -> None:
        message = self.refusal("tests.daemon.bad_handlers:Orders", "follow: [jobs]\n")
        self.assertIn("none of its 'streams' (orders) is among those of 'follow'", message)

    def test_a_master_refuses_a_handler_that_takes_facts_only(self) -> None:
        path = self.directory / "master.yaml"
        text = "server_name: example.com\ndatabase: embedded\ndata_dir: data\nhandlers: [{}]\n"
        path.write_text(text.format("'tests.daemon.bad_handlers:FactsOnly'"))
        result = run("check-config", "-c", path)
        self.assertEqual(result.exit_code, 2, result.output)
        self.assertIn("a master hands none to its handlers", result.stderr)
        path.write_text(text.format("'tests.daemon.bad_handlers:Commands'"))
        result = run("check-config", "-c", path)
        self.assertEqual(result.exit_code, 0, result.output)

    def test_reports_all_errors_at_once(self) -> None:
        path = self.directory / "worker.yaml"
        path.write_text(
            f"{WORKER}follow: [jobs, nosuch]\n"
            "stream_writers: {others: [master], jobs: [worker1]}\n"
            "handlers:\n  - a:B\n  - tests.daemon.bad_handlers:StreamsAsText\n"
        )
        result = run("check-config", "-c", path)
        self.assertEqual(
            [line.split(": ")[2] for line in result.stderr.splitlines()],
            [f"{path}:8:16", f"{path}:9:18"],
        )
        path.write_text(path.read_text().replace(", nosuch", "").replace("others: [master], ", ""))
        result = run("check-config", "-c", path)
        self.assertEqual(
            [line.split(": ")[2] for line in result.stderr.splitlines()],
            [f"{path}:9:18", f"{path}:11:5", f"{path}:12:5"],
        )
        self.assertIn(
            "'worker1' is this process, and a writer writes to the database", result.stderr
        )


class CheckConfigOfRunningProcesses(CliCase):
    """Processes refuse with the same message as ``check-config``."""

    async def test_imports_a_handler_from_the_working_directory(self) -> None:
        path: Path = self.directory / "worker.yaml"
        path.write_text(f"{WORKER}handlers: ['shop:Mailer']\n")
        (self.directory / "shop.py").write_text(
            "from synrepl.services.handlers import Handler\n"
            "class Mailer(Handler):\n    streams = {'orders'}\n"
        )
        done = await self.run_command("check-config", "-c", path)
        self.assertEqual((done.code, done.err), (0, ""))
        (self.directory / "shop.py").write_text("class Mailer(:\n")
        for command in "check-config", "worker":
            done = await self.run_command(command, "-c", path)
            self.assertEqual(done.code, 2)
            self.assertRegex(
                done.err,
                r"^synrepl: error: .*worker\.yaml:8:12: handlers: shop:Mailer cannot be used: "
                r'File ".*shop\.py", line 1 .*SyntaxError: invalid syntax\n$',
            )

"""The ``synrepl`` command: conventions, ``init`` and ``check-config``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import SkipTest, TestCase
from unittest.mock import patch

import click
import yaml
from click.testing import CliRunner, Result

import synrepl
from synrepl.cli import COMMANDS, cli, init
from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.config.client_streams import CLIENT_STREAMS
from synrepl.daemon.config.config import load_master, load_worker
from synrepl.storage.launch.data_dir import can_enter
from synrepl.storage.launch.postgres import account_for
from synrepl.storage.rooms.partial.swap_facts import RESYNC_STREAMS
from synrepl.streams.synapse import SYNAPSE_STREAMS


def run(*arguments: object) -> Result:
    """Run ``synrepl`` with these arguments."""
    return CliRunner().invoke(cli, [str(each) for each in arguments], prog_name="synrepl")


class WorkingDirectoryCase(TestCase):
    """Tests that write files."""

    def setUp(self) -> None:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.directory.chmod(0o755)  # the embedded database may run as another user


class CommandConventions(WorkingDirectoryCase):
    """What holds for every sub-command."""

    def test_every_entry_of_the_table_loads(self) -> None:
        context = click.Context(cli)
        for name, (_, summary) in COMMANDS.items():
            with self.subTest(name):
                assert isinstance(cli, click.Group)
                command = cli.get_command(context, name)
                assert command is not None
                self.assertEqual(command.name, name)
                self.assertTrue(command.help)
                self.assertTrue(summary.endswith("."))

    def test_help_imports_no_sub_command(self) -> None:
        code = (
            "import sys; from synrepl.cli import cli\n"
            "try: cli.main(['--help'])\n"
            "except SystemExit: pass\n"
            "loaded = [m for m in sys.modules if m.startswith('synrepl.cli.')]\n"
            "sys.exit(len(loaded) or 'twisted' in sys.modules)\n"
        )
        root = Path(synrepl.__file__).parent.parent
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=root)
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in COMMANDS:
            self.assertIn(name.encode(), done.stdout)

    def test_usage_errors_exit_with_2(self) -> None:
        for arguments in (["nonsense"], ["init"], ["--nonsense"], ["check-config"]):
            with self.subTest(arguments):
                self.assertEqual(run(*arguments).exit_code, 2)

    def test_prints_the_version(self) -> None:
        result = run("--version")
        self.assertEqual(result.exit_code, 0)
        self.assertIn(synrepl.__version__, result.stdout)

    def test_configuration_errors_are_one_line_and_exit_with_2(self) -> None:
        result = run("check-config", "-c", self.directory / "gone.yaml")
        self.assertEqual(result.exit_code, 2)
        self.assertEqual(result.stdout, "")
        self.assertRegex(result.stderr, r"^synrepl: error: configuration .*gone\.yaml.*\n$")

    def test_several_configuration_errors_are_a_line_each(self) -> None:
        path = self.directory / "a.yaml"
        path.write_text("server_name: a b\nhttp: {port: x}\n")
        result = run("check-config", "--role", "master", "-c", path)
        self.assertEqual(result.exit_code, 2)
        self.assertEqual(
            [line.split(": ")[:3] for line in result.stderr.splitlines()],
            [["synrepl", "error", f"{path}:{place}"] for place in ("1:1", "2:8")],
        )

    def test_other_errors_exit_with_1(self) -> None:
        run("init", self.directory, "--server-name", "example.com")
        result = run("init", self.directory, "--server-name", "example.com")
        self.assertEqual(result.exit_code, 1)
        self.assertRegex(result.stderr, r"^synrepl: error: .*master\.yaml exists already.*\n$")

    def test_it_runs_as_a_module(self) -> None:
        root = Path(synrepl.__file__).parent.parent
        command = [sys.executable, "-m", "synrepl", "--version"]
        self.assertEqual(subprocess.run(command, capture_output=True, cwd=root).returncode, 0)


class InitCommand(WorkingDirectoryCase):
    """``synrepl init``."""

    def test_writes_configurations_that_load(self) -> None:
        target = self.directory / "deep" / "x"
        result = run(
            *("init", target, "--server-name", "[::1]:8448"),
            *("--replication-port", 5, "--http-port", 6, "--worker-http-port", 7),
        )
        self.assertEqual(result.exit_code, 0, result.output)
        master = load_master([target / "master.yaml"])
        worker = load_worker([target / "worker.yaml"])
        self.assertEqual(master.server_name, "[::1]:8448")
        self.assertEqual(worker.server_name, master.server_name)
        self.assertEqual([each.port for each in master.listeners], [5])
        self.assertEqual(worker.master.port, 5)
        assert master.http is not None
        assert worker.http is not None
        self.assertEqual((master.http.port, worker.http.port), (6, 7))
        self.assertEqual(worker.embedded_dsn_path, master.embedded_dsn_path)
        self.assertEqual((target / "data").stat().st_mode & 0o777, 0o700)

    def test_without_a_matrix_server_only_own_streams_and_caches_are_served(self) -> None:
        run("init", self.directory, "--server-name", "x.org")
        master = load_master([self.directory / "master.yaml"])
        worker = load_worker([self.directory / "worker.yaml"])
        for config in (master, worker):
            self.assertEqual(config.catalogue, ("caches",))
            self.assertEqual([stream.name for stream in catalogue(config)], ["caches"])

    def test_synapse_adds_the_streams_of_synapse(self) -> None:
        run("init", self.directory, "--server-name", "x.org", "--synapse")
        master = load_master([self.directory / "master.yaml"])
        worker = load_worker([self.directory / "worker.yaml"])
        for config in (master, worker):
            self.assertEqual(list(catalogue(config)), list(SYNAPSE_STREAMS))

    def test_the_help_mentions_the_option_synapse(self) -> None:
        self.assertIn("--synapse", run("init", "--help").output)

    def test_init_makes_what_a_server_with_rooms_needs(self) -> None:
        target = self.directory / "chat"
        result = run(
            *("init", target, "--server-name", "x.org", "--rooms"),
            *("--user", "carol", "--client-port", "8448"),
        )
        self.assertEqual(result.exit_code, 0, result.output)
        self.assertIn("@carol:x.org", result.output)
        (password,) = yaml.safe_load((target / "users.yaml").read_text())["users"].values()
        self.assertGreaterEqual(len(password), 16)
        self.assertNotIn(password, result.output)
        for name in ("users.yaml", "signing.key"):
            self.assertEqual((target / name).stat().st_mode & 0o777, 0o600)
        for name, port in (("master.yaml", 8448), ("worker.yaml", 8009)):
            checked = run("check-config", "-c", target / name)
            self.assertEqual(checked.exit_code, 0, checked.output)
            shown = yaml.safe_load(checked.output)
            self.assertEqual(shown["rooms"]["client_api"]["port"], port)
            streams = [stream.name for stream in (*RESYNC_STREAMS, *CLIENT_STREAMS)]
            self.assertEqual(set(shown["catalogue"]), set(streams))

    def test_what_init_makes_for_rooms_takes_part_in_federation(self) -> None:
        target = self.directory / "chat"
        run("init", target, "--server-name", "x.org", "--rooms")
        for name, section in (("master.yaml", "{port: 8448}"), ("worker.yaml", "{}")):
            text = (target / name).read_text()
            added = text.replace("  signing_key:", f"  federation: {section}\n  signing_key:")
            self.assertNotEqual(added, text)
            (target / name).write_text(added)
            checked = run("check-config", "-c", target / name)
            self.assertEqual(checked.exit_code, 0, checked.output)

    def test_init_refuses_what_is_no_user_or_is_used_twice(self) -> None:
        for options in (
            ("--rooms", "--user", "A b"),
            ("--user", "alice"),
            ("--rooms", "--client-port", "9393"),
            ("--rooms", "--client-port", "8009"),
        ):
            result = run("init", self.directory / "no", "--server-name", "x.org", *options)
            self.assertEqual(result.exit_code, 2, result.output)
            self.assertFalse((self.directory / "no").exists())

    def test_streams_named_on_the_command_line_are_declared_in_both_files(self) -> None:
        columns = {"order_id": "text", "total": "bigint", "note": "json?"}
        result = run(
            *("init", self.directory, "--server-name", "x.org"),
            *("--stream", "orders: {order_id: text, total: bigint, note: 'json?'}"),
            *("--stream", "refunds: {order_id: text}"),
        )
        self.assertEqual(result.exit_code, 0, result.output)
        for name, load in (("master.yaml", load_master), ("worker.yaml", load_worker)):
            config = load([self.directory / name])
            self.assertEqual([each.name for each in config.streams], ["orders", "refunds"])
            self.assertEqual(config.streams[0].columns, columns)
            self.assertEqual(list(config.streams[0].columns), list(columns))

    def test_refuses_a_stream_that_cannot_be_declared(self) -> None:
        for option, reason in (
            ("orders", "not a map"),
            ("orders: [a", "--stream"),
            ("orders: {}", "columns must map"),
            ("orders: text", "columns must map"),
            ("orders: {a: 1}", "columns must map"),
            ("orders: {ctid: text}", "system column"),
            ("orders: {a: txt}", "txt"),
            ("Orders: {a: text}", "not a valid name"),
            ("now: {a: text}", "cannot be declared"),
            ("caches: {a: text}", "declared twice"),
            ("a: {a: text}, b: {a: text}", "--stream"),
        ):
            with self.subTest(option):
                arguments = ("--server-name", "x.org", "--stream", option)
                result = run("init", self.directory, *arguments)
                self.assertEqual(result.exit_code, 2, result.output)
                self.assertIn(reason, result.stderr)
                self.assertIn("write it like --stream 'orders: {order_id", result.stderr)
                self.assertEqual(list(self.directory.iterdir()), [])

    def test_a_worker_answers_over_http(self) -> None:
        run("init", self.directory, "--server-name", "x.org")
        http = load_worker([self.directory / "worker.yaml"]).http
        assert http is not None
        self.assertEqual((http.bind_address, http.port), ("127.0.0.1", 9394))

    def test_commented_settings_are_the_defaults(self) -> None:
        """Uncommenting a line of the templates changes nothing but examples."""
        run("init", self.directory, "--server-name", "x.org")
        for name, load in (("master.yaml", load_master), ("worker.yaml", load_worker)):
            path = self.directory / name
            before = load([path])
            lines = path.read_text().splitlines()
            for number, line in enumerate(lines):
                setting = line.lstrip().removeprefix("#")
                examples = (
                    "streams:",
                    "stream_writers:",
                    "handlers:",
                    "federation_sender",
                    "rooms:",
                )
                if not line.lstrip().startswith("#") or setting.startswith((" ", *examples)):
                    continue
                if "_path" in setting or "http_url" in setting:
                    continue
                with self.subTest(file=name, setting=setting):
                    changed = [*lines]
                    changed[number] = line.replace("#", "", 1)
                    path.write_text("\n".join(changed))
                    after = load([path])
                    if setting.startswith("follower_name"):
                        self.assertEqual(after.name_as_follower, before.name_as_follower)  # type: ignore[union-attr]
                    else:
                        self.assertEqual(after, before)

    def test_never_overwrites_a_file(self) -> None:
        (self.directory / "worker.yaml").write_text("mine")
        result = run("init", self.directory, "--server-name", "example.com")
        self.assertEqual(result.exit_code, 1)
        self.assertEqual([path.name for path in self.directory.iterdir()], ["worker.yaml"])
        self.assertEqual((self.directory / "worker.yaml").read_text(), "mine")

    def test_refuses_bad_arguments_and_writes_nothing(self) -> None:
        for arguments, code in (
            (["--server-name", 'x"\ny: 1'], 2),
            (["--server-name", "a b"], 2),
            (["--server-name", "x.org", "--http-port", "0"], 2),
            (["--server-name", "x.org", "--http-port", "9392"], 2),
            (["--server-name", "x.org", "--worker-http-port", "9393"], 2),
            (["--server-name", "x.org", "--worker-http-port", "9392"], 2),
        ):
            with self.subTest(arguments):
                self.assertEqual(run("init", self.directory, *arguments).exit_code, code)
                self.assertEqual(list(self.directory.iterdir()), [])

    def test_reports_a_directory_that_cannot_be_created(self) -> None:
        (self.directory / "file").write_text("")
        result = run("init", self.directory / "file" / "x", "--server-name", "x.org")
        self.assertEqual(result.exit_code, 1)
        self.assertIn("cannot be written", result.stderr)


class InitAsRoot(WorkingDirectoryCase):
    """PostgreSQL does not run as root, so its directory must be accessible to another user."""

    def setUp(self) -> None:
        if os.geteuid() != 0:
            raise SkipTest("for root only")
        super().setUp()
        self.home = self.directory / "home"
        self.home.mkdir(mode=0o700)
        self.system = self.directory / "lib" / "synrepl"
        self.system.parent.mkdir()
        self.system.parent.chmod(0o755)
        patched = patch.object(init, "SYSTEM_DATA", self.system)
        patched.start()
        self.addCleanup(patched.stop)

    def data_dir(self, target: Path) -> Path:
        """The data directory of both configurations; check that PostgreSQL's user can enter it."""
        (data,) = {
            load_master([target / "master.yaml"]).data_dir,
            load_worker([target / "worker.yaml"]).data_dir,
        }
        assert data is not None
        self.assertEqual(data.stat().st_mode & 0o777, 0o700)
        self.assertTrue(can_enter(account_for(data), data.parent))
        return data

    def test_uses_the_system_directory_when_the_home_is_closed(self) -> None:
        result = run("init", self.home / "here", "--server-name", "example.com")
        self.assertEqual(result.exit_code, 0, result.output)
        self.assertEqual(self.data_dir(self.home / "here"), self.system / "example.com")
        self.assertIn(
            f"data goes to {self.system}/example.com: PostgreSQL does not run", result.stdout
        )
        self.assertIn(f"cannot enter {self.home}/here", result.stdout)

    def test_refuses_a_second_server_of_the_same_name(self) -> None:
        run("init", self.home / "here", "--server-name", "example.com")
        result = run("init", self.home / "there", "--server-name", "example.com")
        self.assertEqual(result.exit_code, 1)
        self.assertIn(f"{self.system}/example.com exists already", result.stderr)
        self.assertIn("with --data-dir", result.stderr)
        self.assertFalse((self.home / "there").exists())
        data = self.directory / "other" / "data"
        result = run(
            "init", self.home / "there", "--server-name", "example.com", "--data-dir", data
        )
        self.assertEqual(result.exit_code, 0, result.output)
        self.assertEqual(self.data_dir(self.home / "there"), data)

    def test_refuses_a_data_dir_that_postgres_cannot_enter(self) -> None:
        arguments = ("--server-name", "example.com", "--data-dir", self.home / "data")
        result = run("init", self.directory / "here", *arguments)
        self.assertEqual(result.exit_code, 2)
        self.assertRegex(result.stderr, f"user .* cannot enter {self.home}, and PostgreSQL runs as")
        self.assertFalse((self.directory / "here").exists())

    def test_refuses_when_the_system_directory_is_closed(self) -> None:
        self.system.parent.chmod(0o700)
        result = run("init", self.home / "here", "--server-name", "example.com")
        self.assertEqual(result.exit_code, 2)
        self.assertRegex(result.stderr, f"user .* cannot enter {self.system}, .* name a --data-dir")

    def test_uses_the_given_directory_when_it_is_open(self) -> None:
        self.home.chmod(0o755)
        result = run("init", self.home / "here", "--server-name", "example.com")
        self.assertEqual(result.exit_code, 0, result.output)
        self.assertEqual(self.data_dir(self.home / "here"), self.home / "here" / "data")
        self.assertNotIn("data goes to", result.stdout)
        self.assertFalse(self.system.exists())


class InvalidNames(WorkingDirectoryCase):
    """An invalid name is a usage error of every command."""

    def test_every_command_exits_with_2_on_an_invalid_name(self) -> None:
        run("init", self.directory, "--server-name", "example.com")
        config = ("-c", self.directory / "master.yaml")
        for arguments in (
            ("init", self.directory / "x", "--server-name", "a b"),
            ("writers", "add", *config, "events", "a b"),
            ("tail", "127.0.0.1:1", "A B"),
            ("lake", "land", self.directory / "lake", "--database", "dbname=x", "--name", "a b"),
        ):
            with self.subTest(arguments):
                result = run(*arguments)
                self.assertEqual(result.exit_code, 2, result.output)
                self.assertRegex(result.stderr, "is not a valid name: use ")


class CheckConfigCommand(WorkingDirectoryCase):
    """``synrepl check-config``."""

    def setUp(self) -> None:
        super().setUp()
        run("init", self.directory, "--server-name", "example.com")

    def test_prints_a_configuration_that_loads_the_same(self) -> None:
        for name, load in (("master.yaml", load_master), ("worker.yaml", load_worker)):
            with self.subTest(name):
                path = self.directory / name
                before = load([path])
                result = run("check-config", "-c", path)
                self.assertEqual(result.exit_code, 0, result.output)
                again = self.directory / "again.yaml"
                again.write_text(result.stdout)
                self.assertEqual(load([again]), before)

    def test_json_holds_the_same_as_text(self) -> None:
        path = self.directory / "master.yaml"
        as_json = json.loads(run("check-config", "-c", path, "--json").stdout)
        as_text = yaml.safe_load(run("check-config", "-c", path).stdout)
        self.assertEqual(as_json, as_text)

    def test_secrets_are_not_printed(self) -> None:
        (self.directory / "secret").write_text("sesame")
        (self.directory / "secret").chmod(0o600)
        extra = self.directory / "extra.yaml"
        extra.write_text(
            "http: {secret_path: secret}\ndatabase: postgresql://u:sesame@localhost/db\n"
        )
        result = run("check-config", "-c", self.directory / "master.yaml", "-c", extra)
        self.assertEqual(result.exit_code, 0, result.output)
        self.assertNotIn("sesame", result.output)
        self.assertIn("postgresql://u:***@localhost/db", result.output)

    def test_takes_the_role_from_the_option(self) -> None:
        result = run("check-config", "--role", "worker", "-c", self.directory / "master.yaml")
        self.assertEqual(result.exit_code, 2)
        self.assertIn("there is no setting", result.stderr)

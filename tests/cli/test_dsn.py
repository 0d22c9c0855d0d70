"""Commands that take a DSN send nothing in plain text to another machine, unless --insecure is given."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import TestCase

import click

from synrepl.cli import cli
from synrepl.cli.dsn import dsn_from_options
from synrepl.driver.dsn import PlainTextDatabase
from tests.cli.test_cli import WorkingDirectoryCase, run

ELSEWHERE = "host=db.example.com user=reader"


def commands(group: click.Command, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands below a group, with the words that call them."""
    yield names, group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            assert found is not None
            yield from commands(found, *names, name)


def takes_a_dsn() -> dict[tuple[str, ...], set[str]]:
    """The options of each command that takes a DSN."""
    options = {
        names: {str(param.name) for param in command.params} for names, command in commands(cli)
    }
    return {names: given for names, given in options.items() if "database_path" in given}


class DsnOptionsOfAllCommands(WorkingDirectoryCase):
    """All commands that take a DSN, including future ones."""

    def test_every_command_has_the_option_insecure(self) -> None:
        found = takes_a_dsn()
        self.assertLessEqual(
            {("doctor",), ("doctor", "database"), ("watch",), ("lake", "land")}, found.keys()
        )
        for names, given in found.items():
            with self.subTest(names):
                self.assertIn("insecure", given)

    def test_every_command_refuses_plain_text_to_another_machine(self) -> None:
        path = self.directory / "dsn"
        path.write_text(ELSEWHERE)
        path.chmod(0o600)
        config = ["-c", self.directory / "none.yaml"]
        needed = {
            "watch": ["--tcp", "127.0.0.1:1"],
            "lake": [self.directory / "lake"],
            "rooms": config,
        }
        of_one = {("lake", "run"): ["verify-rooms"]}
        for names in takes_a_dsn():
            for given in ("--database", ELSEWHERE), ("--database-path", path):
                with self.subTest(names, given=given[0]):
                    arguments = of_one.get(names, needed.get(names[0], []))
                    result = run(*names, *arguments, *given)
                    self.assertEqual(result.exit_code, 2, result.output)
                    self.assertIn("'db.example.com' is on another machine", result.stderr)
                    self.assertIn("accept plain text by --insecure", result.stderr)


class DsnFromOptions(TestCase):
    def test_accepts_plain_text_only_with_insecure(self) -> None:
        self.assertRaises(PlainTextDatabase, dsn_from_options, ELSEWHERE, None)
        self.assertEqual(dsn_from_options(ELSEWHERE, None, insecure=True), ELSEWHERE)
        encrypted = f"{ELSEWHERE} sslmode=verify-full"
        self.assertEqual(dsn_from_options(encrypted, None), encrypted)

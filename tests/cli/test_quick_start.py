"""The quick start of the README, run command by command in an empty directory."""

from __future__ import annotations

import re
import shlex

from twisted.internet.threads import deferToThread

from synrepl.cli.init import DEFAULT_HTTP_PORT, DEFAULT_WORKER_HTTP_PORT
from tests.cli.cli_case import REPOSITORY, CliCase, CommandResult, free_port


def section(title: str) -> str:
    """The text of a section of the README."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def block(text: str, language: str) -> str:
    """The first block of code in a language."""
    match = re.search(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1]


def arguments(line: str) -> list[str]:
    """The arguments of a ``synrepl`` command."""
    program, *words = shlex.split(line, comments=True)
    assert program == "synrepl", line
    return words


class QuickStart(CliCase):
    """Section "Use it" of the README."""

    async def test_commands_work_as_printed(self) -> None:
        text = section("Use it")
        install, init, master, worker = block(text, "sh").splitlines()
        self.assertTrue(install.startswith("pip install"), install)
        http, worker_http = free_port(), free_port()
        ports = ("--replication-port", free_port(), "--http-port", http)
        done = await self.run_command(*arguments(init), *ports, "--worker-http-port", worker_http)
        self.assertEqual(done.code, 0, done.err)
        written = {path.name for path in (self.directory / "here").iterdir()}
        self.assertEqual(written, {"master.yaml", "worker.yaml", "data"})
        await self.start(*arguments(master)).stderr_containing("is ready")
        await self.start(*arguments(worker)).stderr_containing("connected to")

        for command, output in self.dialogue(block(text, "console")):
            done = await self.pipeline(command)
            self.assertEqual((done.code, done.err), (0, ""), command)
            if output:
                self.assertEqual(done.out, output, command)

        example = block(text, "python").replace(str(DEFAULT_HTTP_PORT), str(http))
        example = example.replace(str(DEFAULT_WORKER_HTTP_PORT), str(worker_http))
        names: dict[str, object] = {}
        await deferToThread(exec, example, names)
        self.assertEqual(getattr(names["appended"], "tokens", None), (2, 3))

    def dialogue(self, text: str) -> list[tuple[str, str]]:
        """Each command of a console block, with its output."""
        parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)[1:]
        return list(zip(parts[::2], parts[1::2], strict=True))

    async def pipeline(self, line: str) -> CommandResult:
        """Run a ``synrepl`` command, perhaps with the output of ``echo`` as its input."""
        echo, _, command = line.rpartition(" | ")
        text = shlex.split(echo)[1] + "\n" if echo else ""
        return await self.run_command(*arguments(command), stdin=text.encode())

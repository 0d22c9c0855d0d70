"""The commands in docs/rooms.md print what it shows, on the room that it makes, and on a recorded server's."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from tests.cli.rooms_case import SETTINGS, RoomsCase
from tests.storage.foreign_rooms import room_database, rooms_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rooms.md"

#: The room of a real server that the page imports.
RECORDED = "!WZFFpHQzpVVWdNYlbp:localhost:18301"


def commands() -> list[tuple[str, str]]:
    """The commands of ``synrepl rooms`` on the page, each with the output that follows it."""
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    found = [
        each.partition("\n")[::2]
        for block in blocks
        for each in re.split(r"^\$ ", block, flags=re.MULTILINE)
    ]
    return [(line, output) for line, output in found if line.startswith("synrepl rooms ")]


class RoomsPageAtTheTerminal(RoomsCase):
    maxDiff = None

    async def test_commands_print_what_is_shown(self) -> None:
        (example,) = re.findall(
            r"```python\n([^`]*room\.jsonl\"\)\.write.*?)```", PAGE.read_text(), re.DOTALL
        )
        before = Path.cwd()
        os.chdir(self.directory)
        try:
            exec(compile(example, str(PAGE), "exec"), {})
        finally:
            os.chdir(before)
        (recorded,) = (each for each in rooms_of("1.43.0") if each.room_id == RECORDED)
        source = self.directory / "synapse.dsn"
        source.write_text(await room_database("1.43.0", self, [recorded]))
        source.chmod(0o600)
        await self.master(**SETTINGS)
        shown = commands()
        self.assertGreater(len(shown), 8)
        for line, output in shown:
            done = await self.run_command(*shlex.split(line)[1:])
            self.assertEqual((done.code, done.err + done.out), (0, output), line)
        root = (self.directory / "room.svg").read_bytes()
        self.assertIn(b"<svg ", root)
        copy = (self.directory / "copy.jsonl").read_bytes()
        self.assertEqual(copy, (self.directory / "room.jsonl").read_bytes())

"""The examples of docs/rooms.md, run as they stand: on the room that they make, in a file and in a store."""

from __future__ import annotations

import ast
import inspect
import io
import os
import re
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from synrepl import RoomStore
from synrepl.rooms import Event
from tests.storage.rooms.store_case import StoreCase

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "rooms.md"

#: A block of Python, and the block of text that shows what it prints, if there is one.
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)


class RoomExamples(StoreCase):
    """Examples run in order, in one namespace, beside a configuration of the database with the room that they make.

    Those in a coroutine of their reader have its ``rooms`` and ``room``.
    """

    maxDiff = None

    async def test_they_print_what_they_say(self) -> None:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.addCleanup(os.chdir, Path.cwd())
        os.chdir(directory.name)
        Path("master.yaml").write_text(f"server_name: example.org\ndatabase: {self.dsn}\n")
        names: dict[str, Any] = {"rooms": RoomStore(self.database)}
        blocks = list(BLOCK.finditer(DOCUMENT.read_text(encoding="utf-8")))
        self.assertGreater(len(blocks), 4)
        made = Path("room.jsonl")
        for block in blocks:
            was_made = made.exists()
            printed = await run(block["code"], names)
            if made.exists() and not was_made:
                events: list[Event] = names["events"]
                await self.one.persist(events[0].room_id, events[0].version, events)
                (names["room"],) = await names["rooms"].rooms()
            if block["shown"] is not None:
                self.assertEqual(printed, block["shown"], block["code"])


async def run(code: str, names: dict[str, Any]) -> str:
    """What a block with top-level ``await`` prints."""
    compiled = compile(code, str(DOCUMENT), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    out = io.StringIO()
    with redirect_stdout(out):
        done = eval(compiled, names)
        if inspect.iscoroutine(done):
            await done
    return out.getvalue()

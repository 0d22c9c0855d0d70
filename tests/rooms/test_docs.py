"""What docs/rooms.md shows does what it says."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import TestCase

from synrepl import rooms
from tests.rooms.vector_files import lines

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rooms.md"


class RoomsPage(TestCase):
    """The example, on a room of the vectors; and what can be imported."""

    def test_every_public_name_is_explained(self) -> None:
        page = PAGE.read_text()
        source = ast.parse(Path(rooms.__file__).read_text())
        imports = [node for node in source.body if isinstance(node, ast.ImportFrom)]
        names = {alias.asname for node in imports for alias in node.names if alias.asname}
        self.assertIn("Event", names)
        self.assertEqual([name for name in sorted(names) if f"`{name}`" not in page], [])

    def test_the_example_runs(self) -> None:
        making, example = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[:2]
        head, *events = lines("dags/v10_mixed_120.jsonl.gz")
        printed = io.StringIO()
        before = Path.cwd()
        with TemporaryDirectory() as folder:
            names: dict[str, Any] = {}
            texts = [json.dumps(each["event"]) for each in reversed(events)]
            os.chdir(folder)
            try:
                exec(compile(making, str(PAGE), "exec"), names)
                Path("room.jsonl").write_text("\n".join(texts))
                with contextlib.redirect_stdout(printed):
                    exec(compile(example, str(PAGE), "exec"), names)
            finally:
                os.chdir(before)
        *refused, counts, name = printed.getvalue().splitlines()
        self.assertEqual(len(refused), head["n_rejected"])
        state = {(kind, key): event_id for kind, key, event_id in head["current_state"]}
        self.assertEqual(counts, f"{head['n_events']} events; {len(state)} entries in the state")
        self.assertEqual(name, f"name: {state.get(('m.room.name', ''))}")

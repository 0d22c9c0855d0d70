"""What docs/commands.md shows does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.daemon.writers_case import WritersCase

PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"


class CommandsPage(WritersCase):
    """The example's handlers, in a master and a worker."""

    async def test_handlers_of_the_example_work(self) -> None:
        (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        (setting,) = re.findall(r"```yaml\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
        (self.directory / "shown.py").write_text(example)
        shown = yaml.safe_load(setting)
        self.assertEqual(shown["federation_sender_instances"], ["sender1", "sender2"])
        self.assertIn("federation", shown["catalogue"])
        delegated = {
            "catalogue": "[federation]",
            "stream_writers": "{}",
            "federation_sender_instances": "[w1]",
        }
        online = self.directory / "online"
        presence = f"{{class: 'shown:Presence', config: {{path: {online}}}}}"
        await self.begin("master", handlers=f"[{presence}]", **delegated)
        await self.begin("w1", handlers="['shown:Front', 'shown:FederationSender']", **delegated)
        await self.append("master", "orders", ["alice", 1, None], ["bob", 1, None])
        await self.append("master", "federation", ["k", {"edu": 1}])

        async def is_shown() -> Any:
            federation = (await self.ask("master", "/status"))["federation"]
            shown = online.read_text() if online.exists() else ""
            return (shown, federation["floor"]) == ("@alice:example.com @bob:example.com", 1)

        await self.until(is_shown)
        self.processes["w1"].signal("TERM")

        async def is_empty() -> bool:
            return online.read_text() == ""

        await self.until(is_empty)

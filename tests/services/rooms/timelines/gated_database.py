"""A database that counts its transactions, and holds their results back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred


class GatedDatabase:
    """Counts the transactions of a database, by name, and holds their results back if asked to.

    :ivar gate: results are held back until it fires
    :ivar held: fires when one is held back
    """

    def __init__(self, database: Any) -> None:
        self._database = database
        self.names: list[str] = []
        self.gate: Deferred[None] | None = None
        self.held: Deferred[None] = Deferred()

    async def run(self, name: str, work: Callable[[Any], Any], **options: Any) -> Any:
        self.names.append(name)
        result = await self._database.run(name, work, **options)
        gate = self.gate
        if gate is not None:
            self.held.callback(None)
            await gate  # whoever awaits ``held`` may have taken it away
        return result

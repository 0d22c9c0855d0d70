"""The log of services: an interface that ``twisted.logger.Logger`` satisfies."""

from __future__ import annotations

from typing import Protocol


class Logger(Protocol):
    """Logs events for operators; ``facts`` are the fields of ``format``."""

    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        """Log something that is worth knowing."""

    def warn(self, format: str, **facts: object) -> None:  # noqa: A002
        """Log something that somebody should look at."""

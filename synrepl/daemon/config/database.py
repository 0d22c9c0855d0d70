"""The sections ``database_pool`` and ``embedded`` of the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from synrepl.daemon.config import values
from synrepl.daemon.config.decode import Section, Unfit


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig(Section):
    """The pool of database connections of this process; ``connect_timeout`` in seconds."""

    min: values.Count = 1
    max: values.Count = 10
    connect_timeout: values.Duration = 10.0

    def faults(self) -> Iterator[Unfit]:
        if self.min > self.max:
            yield Unfit(key="min", reason=f"{self.min} is more than max, {self.max}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedConfig(Section):
    """Settings of the embedded PostgreSQL.

    :ivar port: 0 for any free port
    :ivar prefer_system: use the binaries of an installed PostgreSQL if there is one
    :ivar fsync: False risks the data when the machine crashes
    """

    port: values.Port = 0
    prefer_system: bool = False
    fsync: bool = True

"""The user's handlers in the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from synrepl.core import names
from synrepl.core.errors import InputError
from synrepl.daemon.config import values
from synrepl.daemon.config.decode import Section, Unfit

#: Where a handler begins; a token is the last one that it is not given.
StartSetting = Literal["earliest", "now"] | values.TokenValue


@dataclass(frozen=True, slots=True, kw_only=True)
class OnFailureConfig(Section):
    """What becomes of a fact that a handler cannot take.

    :ivar attempts: after how many it is set aside as a dead letter; None for never
    """

    attempts: values.Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerConfig(Section):
    """A class of the user's that is told of facts.

    :ivar path: ``package.module:Class``
    :ivar config: handed to the class as it is
    :ivar name: under which its positions are kept; None for ``path``
    :ivar start: where it begins when it has no position, everywhere or by stream; None
        for the worker's ``starting``
    """

    shorthand: ClassVar[str] = "class"

    path: values.ObjectPath = field(metadata={"key": "class"})
    config: Mapping[str, Any] = field(default_factory=dict)
    name: values.HandlerName | None = None
    start: StartSetting | Mapping[values.StreamName, StartSetting] | None = None
    on_failure: OnFailureConfig = field(default_factory=OnFailureConfig)

    def faults(self) -> Iterator[Unfit]:
        try:
            names.handler_name(self.name_of_positions)
        except InputError as error:
            yield Unfit(key="class", reason=f"{error}; or give it a 'name'")

    @property
    def name_of_positions(self) -> str:
        """Under which its positions are kept."""
        return self.name or self.path


def unfit_handlers(
    handlers: Sequence[HandlerConfig], *, has_database: bool, is_master: bool
) -> Iterator[Unfit]:
    """Handlers that cannot be told apart, or not be served as they want."""
    seen: set[str] = set()
    for number, handler in enumerate(handlers):
        name = handler.name_of_positions
        if name in seen:
            reason = f"two handlers have the name {name!r}: give one of them another 'name'"
            yield Unfit(key=f"handlers.{number}", reason=reason)
        seen.add(name)
        if is_master and (handler.start is not None or handler.on_failure.attempts is not None):
            yield Unfit(
                key=f"handlers.{number}",
                reason="'start' and 'on_failure' are for workers: a master hands no facts to"
                " its handlers",
            )
        if handler.on_failure.attempts is not None and not has_database:
            yield Unfit(
                key=f"handlers.{number}.on_failure",
                reason="facts are set aside in the database; configure 'database'",
            )

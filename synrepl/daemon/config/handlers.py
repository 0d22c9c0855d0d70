"""The ``handlers`` section of the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from synrepl.core import names
from synrepl.core.errors import InputError
from synrepl.daemon.config import values
from synrepl.daemon.config.decode import Section, Unfit

#: Where a handler begins; a token stands for the facts after it.
StartSetting = Literal["earliest", "now"] | values.TokenValue


@dataclass(frozen=True, slots=True, kw_only=True)
class OnFailureConfig(Section):
    """What happens to a fact for which a handler fails.

    :ivar attempts: failed attempts after which it becomes a dead letter; None for never
    """

    attempts: values.Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerConfig(Section):
    """A handler class of the user.

    :ivar path: ``package.module:Class``
    :ivar config: keyword arguments of the class
    :ivar name: name under which its positions are recorded; None for ``path``
    :ivar start: where it begins without a recorded position, for all streams or by stream;
        None for the worker's ``starting``
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
        """The name under which its positions are recorded."""
        return self.name or self.path


def unfit_handlers(
    handlers: Sequence[HandlerConfig], *, has_database: bool, is_master: bool
) -> Iterator[Unfit]:
    """Check that handlers have distinct names, and that the process supports their settings."""
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
                reason="dead letters are stored in the database; configure 'database'",
            )

"""The error hierarchy.

The docstring of each class *is* its message: a sentence that says what happened,
where, and what to do, with ``{placeholders}`` for the keyword arguments of the
constructor. A layer that needs its own error subclasses one of the families below,
in the module that raises it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from string import Formatter


class SynreplError(Exception):
    """something went wrong"""

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        super().__init__(self.template().format(**facts))

    @classmethod
    def template(cls) -> str:
        """The message with its placeholders, as one line."""
        found = _TEMPLATES.get(cls)
        if found is None:
            found = _TEMPLATES[cls] = " ".join((inspect.getdoc(cls) or "").split())
        return found

    @classmethod
    def placeholders(cls) -> frozenset[str]:
        """Names of the keyword arguments that the constructor requires."""
        parsed = Formatter().parse(cls.template())
        return frozenset(name.partition(".")[0] for _, name, _, _ in parsed if name)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.facts)


#: Cached per class, because a peer may make the same mistake very often.
_TEMPLATES: dict[type[SynreplError], str] = {}


def _rebuild(cls: type[SynreplError], facts: dict[str, object]) -> SynreplError:
    return cls(**facts)


class InputError(SynreplError):
    """the input is not acceptable"""


class ConfigError(InputError):
    """the configuration is not acceptable"""


class ConfigErrors(ConfigError):
    """{lines}"""

    def __init__(self, *, lines: object, errors: Sequence[ConfigError] = ()) -> None:
        super().__init__(lines=lines, errors=errors)
        self.errors = tuple(errors)


def raise_all(errors: Sequence[ConfigError]) -> None:
    """Raise the errors, if there are any: one as it is, several as :class:`ConfigErrors`.

    :raises ConfigError:
    """
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ConfigErrors(lines="\n".join(map(str, errors)), errors=errors)


def errors_in(error: SynreplError) -> Sequence[SynreplError]:
    """The individual errors: those in a :class:`ConfigErrors`, else the error itself."""
    return error.errors if isinstance(error, ConfigErrors) else (error,)


class ProtocolError(SynreplError):
    """the other side broke the protocol"""


class StorageError(SynreplError):
    """the database did not do what was asked"""


class Unavailable(SynreplError):
    """something this process needs is away for now"""


class Refused(SynreplError):
    """the request is well formed but may not be carried out"""

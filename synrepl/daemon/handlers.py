"""The user's handlers, made from the configuration."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Sequence

from synrepl.core.errors import ConfigError
from synrepl.daemon import config
from synrepl.services.handlers import Handler


class HandlerUnusable(ConfigError):
    """handlers: {path} cannot be used: {reason}"""


def load(wanted: Sequence[config.Handler]) -> list[Handler]:
    """Import and make the handlers; a handler's ``config`` becomes its keyword arguments.

    :raises HandlerUnusable: it cannot be imported or made, or is no :class:`Handler`
    """
    return [_load(item) for item in wanted]


def _load(item: config.Handler) -> Handler:
    module, _, name = item.path.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)(**item.config)
    except Exception as error:  # a user's module may fail in any way
        reason = "".join(traceback.format_exception_only(error)).strip()
        raise HandlerUnusable(path=item.path, reason=reason) from error
    if not isinstance(made, Handler):
        raise HandlerUnusable(
            path=item.path, reason="it is no subclass of synrepl.services.handlers.Handler"
        )
    return made

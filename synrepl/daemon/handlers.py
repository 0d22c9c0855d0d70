"""The user's handlers, made from the configuration."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Sequence

from synrepl.core.errors import ConfigError, SynreplError
from synrepl.daemon import config
from synrepl.services.handlers import Access, Handler


class HandlerUnusable(ConfigError):
    """handlers: {path} cannot be used: {reason}"""


def load(wanted: Sequence[config.Handler]) -> list[Handler]:
    """Import and make the handlers; a handler's ``config`` becomes its keyword arguments.

    :raises HandlerUnusable: it cannot be imported or made, or is no :class:`Handler`
    """
    return [_load(item) for item in wanted]


async def start(handler: Handler, access: Access) -> None:
    """Tell a handler what of its process it may use.

    :raises HandlerUnusable: it cannot start
    :raises SynreplError: what the process itself raised when the handler used it
    """
    try:
        await handler.on_start(access)
    except SynreplError:
        raise
    except Exception as error:  # a user's handler may fail in any way
        reason = "".join(traceback.format_exception_only(error)).strip()
        raise HandlerUnusable(path=type(handler).__qualname__, reason=reason) from error


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

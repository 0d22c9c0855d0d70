"""The user's handlers, made from the configuration."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.core.errors import SynreplError
from synrepl.daemon import config
from synrepl.daemon.handler_classes import HandlerUnusable, handler_class, in_one_line
from synrepl.services.handlers import Access, Handler


def load(wanted: Sequence[config.Handler]) -> list[Handler]:
    """Import and make the handlers; a handler's ``config`` becomes its keyword arguments.

    :raises HandlerUnusable: it cannot be imported or made, or is no :class:`Handler`
    """
    return [_load(item) for item in wanted]


async def start(made: Sequence[Handler], access: Access) -> None:
    """Tell the handlers what of their process they may use.

    :raises HandlerUnusable: one cannot start
    """
    for handler in made:
        try:
            await handler.on_start(access)
        except SynreplError:
            raise
        except Exception as error:  # a user's handler may fail in any way
            path = type(handler).__qualname__
            raise HandlerUnusable(path=path, reason=in_one_line(error)) from error


def _load(item: config.Handler) -> Handler:
    cls = handler_class(item.path)
    try:
        return cls(**item.config)
    except Exception as error:  # a user's class may fail in any way
        raise HandlerUnusable(path=item.path, reason=in_one_line(error)) from error

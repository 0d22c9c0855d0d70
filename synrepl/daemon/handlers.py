"""Makes the user's handlers from the configuration, and starts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from synrepl.core.errors import SynreplError
from synrepl.daemon.config.config import Config, WorkerConfig
from synrepl.daemon.config.handlers import HandlerConfig
from synrepl.daemon.handler_classes import HandlerUnusable, handler_class, unusable, verify_instance
from synrepl.services.following.consumer import Start, StartAt, Subscription
from synrepl.services.handlers import Access, Handler


def load(config: Config) -> list[Subscription]:
    """Import and make the handlers; a handler's ``config`` becomes its keyword arguments.

    :raises HandlerUnusable: it cannot be imported or made, or is no handler
    """
    return [_subscription(config, item, _make(item)) for item in config.handlers]


async def start(made: Sequence[Subscription], access: Access) -> None:
    """Call ``on_start`` of each handler.

    :raises HandlerUnusable: a handler cannot start
    """
    for each in made:
        try:
            await each.handler.on_start(access)
        except SynreplError:
            raise
        except Exception as error:  # a user's handler may fail in any way
            raise unusable(each.name or type(each.handler).__qualname__, error) from error


def _subscription(loaded: Config, item: HandlerConfig, handler: Handler) -> Subscription:
    otherwise = loaded.starting if isinstance(loaded, WorkerConfig) else "earliest"
    by_stream = item.start if isinstance(item.start, Mapping) else {}
    start = otherwise if item.start is None or isinstance(item.start, Mapping) else item.start
    return Subscription(
        handler,
        item.name_of_positions,
        _start(start),
        {stream: _start(each) for stream, each in by_stream.items()},
        item.on_failure.attempts,
    )


def _start(value: str | int) -> Start:
    return value if isinstance(value, int) else StartAt(value)


def _make(item: HandlerConfig) -> Handler:
    cls = handler_class(item.path)
    try:
        handler = cls(**item.config)
        verify_instance(item.path, handler)
    except HandlerUnusable:
        raise
    except Exception as error:  # a user's class may fail in any way
        raise unusable(item.path, error) from error
    return handler

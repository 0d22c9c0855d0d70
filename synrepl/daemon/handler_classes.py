"""The classes of handlers, imported and checked without making one."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Collection, Iterator

from synrepl.core.errors import ConfigError
from synrepl.daemon.config import Config, Handler, WorkerConfig
from synrepl.services import handlers
from synrepl.services.handlers import TransactionalHandler
from synrepl.streams.catalogue import Catalogue, UnknownStream


class HandlerUnusable(ConfigError):
    """handlers: {path} cannot be used: {reason}"""


def include_working_directory() -> None:
    """Have modules of the working directory found, as ``python -m`` does."""
    if "" not in sys.path:
        sys.path.append("")


def handler_class(path: str) -> type[handlers.Handler]:
    """Import a class of the user's.

    :param path: ``package.module:Class``
    :raises HandlerUnusable: it cannot be imported, or is no subclass of ``Handler``
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a user's module may fail in any way
        raise HandlerUnusable(path=path, reason=in_one_line(error)) from error
    if not isinstance(found, type) or not issubclass(found, handlers.Handler):
        reason = "it is no subclass of synrepl.services.handlers.Handler"
        raise HandlerUnusable(path=path, reason=reason)
    return found


def check_handler(item: Handler, config: Config, catalogue: Catalogue) -> None:
    """Import a handler's class, and see that it fits the process. Makes none.

    :raises HandlerUnusable: with everything that is wrong with it
    """
    cls = handler_class(item.path)
    reasons = list(_misfits(cls, item, config, catalogue))
    if reasons:
        raise HandlerUnusable(path=item.path, reason="; ".join(reasons))


def in_one_line(error: BaseException) -> str:
    """What a user's code raised, with the place of a syntax error."""
    return " ".join("".join(traceback.format_exception_only(error)).split())


def _misfits(
    cls: type[handlers.Handler], item: Handler, config: Config, catalogue: Catalogue
) -> Iterator[str]:
    try:
        inspect.signature(cls).bind(**item.config)
    except TypeError as error:
        yield f"its 'config' does not fit: {error}"
    if not isinstance(config, WorkerConfig):
        return  # which hands no rows to handlers
    if issubclass(cls, TransactionalHandler) and not config.has_database:
        yield "it is transactional, and works in the database; configure 'database'"
    streams = cls.streams
    if isinstance(streams, str):
        yield f"its 'streams' must be a set of names, not the text {streams!r}"
    elif isinstance(streams, Collection):  # nor a property, of which only an instance knows
        yield from _unknown(streams, config, catalogue)


def _unknown(streams: Collection[str], config: WorkerConfig, catalogue: Catalogue) -> Iterator[str]:
    for name in sorted(streams):
        try:
            catalogue[name]
        except UnknownStream as error:
            yield f"of its 'streams': {error}"
    if config.follow != "all" and streams and not set(streams) & set(config.follow):
        yield f"none of its 'streams' ({', '.join(sorted(streams))}) is among those of 'follow'"

"""The classes of handlers, imported and checked without making one."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Collection, Iterator

from synrepl.core.errors import ConfigError
from synrepl.daemon.config import Config, WorkerConfig
from synrepl.daemon.config_handlers import Handler
from synrepl.services import handlers
from synrepl.services.handlers import TransactionalHandler
from synrepl.streams.catalogue import Catalogue, UnknownStream
from synrepl.wire.dialects import CLIENT_DIALECTS

#: Where the code is that imports and makes handlers, which is not what fails.
_NOT_THEIRS = (os.path.dirname(__file__), os.path.dirname(importlib.__file__), "<frozen importlib")


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
        raise unusable(path, error) from error
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


def unusable(path: str, error: BaseException) -> HandlerUnusable:
    """What a user's code raised, and in which line of which file."""
    reason = " ".join("".join(traceback.format_exception_only(error)).split())
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
    if theirs and not isinstance(error, SyntaxError):  # which names its place itself
        reason = f"{reason} ({theirs[-1].filename}, line {theirs[-1].lineno})"
    return HandlerUnusable(path=path, reason=reason)


def _misfits(
    cls: type[handlers.Handler], item: Handler, config: Config, catalogue: Catalogue
) -> Iterator[str]:
    try:
        inspect.signature(cls).bind(**item.config)
    except TypeError as error:
        yield f"its 'config' does not fit: {error}"
    if not isinstance(config, WorkerConfig):
        if not _overrides(cls, "on_start", "on_command"):
            yield "it takes facts only, and a master hands none to its handlers: let a worker have it"
        return
    if issubclass(cls, TransactionalHandler) and not config.has_database:
        yield "it is transactional, and works in the database; configure 'database'"
    yield from _bad_view(cls, config)
    streams = cls.streams
    if isinstance(streams, str):
        yield f"its 'streams' must be a set of names, not the text {streams!r}"
    elif isinstance(streams, Collection):  # nor a property, of which only an instance knows
        yield from _unknown(streams, config, catalogue)


def _overrides(cls: type[handlers.Handler], *methods: str) -> bool:
    """Whether a handler has any of the methods itself."""
    return any(getattr(cls, name) is not getattr(handlers.Handler, name) for name in methods)


def _bad_view(cls: type[handlers.Handler], config: WorkerConfig) -> Iterator[str]:
    if cls.view not in (None, "per_writer", "linear"):
        yield f"its 'view' must be 'per_writer' or 'linear' or None, not {cls.view!r}"
        return
    given = "per_writer" if CLIENT_DIALECTS[config.dialect].per_writer else "linear"
    if config.master.foreign and cls.view not in (None, given):
        dialect = "legacy" if cls.view == "linear" else "modern"
        yield (
            f"it wants the {cls.view} view, which a real Synapse gives in the {dialect} dialect"
            f" only: set 'dialect: {dialect}', or leave 'view' out of the class"
        )


def _unknown(streams: Collection[str], config: WorkerConfig, catalogue: Catalogue) -> Iterator[str]:
    for name in sorted(streams):
        try:
            catalogue[name]
        except UnknownStream as error:
            yield f"of its 'streams': {error}"
    if config.follow != "all" and streams and not set(streams) & set(config.follow):
        yield f"none of its 'streams' ({', '.join(sorted(streams))}) is among those of 'follow'"

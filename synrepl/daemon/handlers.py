"""Imports and checks the user's handler classes, makes handlers from the configuration, and starts them."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

from zope.interface.exceptions import (
    BrokenImplementation,
    BrokenMethodImplementation,
    Invalid,
    MultipleInvalid,
)
from zope.interface.verify import verifyClass, verifyObject

from synrepl.core.errors import ConfigError, SynreplError
from synrepl.daemon.config.config import Config, WorkerConfig
from synrepl.daemon.config.handlers import HandlerConfig
from synrepl.services import handlers
from synrepl.services.following.consumer import Start, StartAt, Subscription
from synrepl.services.handler_interfaces import IHandler, ITransactionalHandler
from synrepl.services.handlers import Access, Handler
from synrepl.streams.catalogue import Catalogue, UnknownStream
from synrepl.wire.dialects import CLIENT_DIALECTS

#: Directories of the code that imports and makes handlers; its frames are not reported.
_OWN_FILES = (os.path.dirname(__file__), os.path.dirname(importlib.__file__), "<frozen importlib")


class HandlerUnusable(ConfigError):
    """handlers: {path} cannot be used: {reason}"""


def include_working_directory() -> None:
    """Add the working directory to the module search path, as ``python -m`` does."""
    if "" not in sys.path:
        sys.path.append("")


def handler_class(path: str) -> type[handlers.Handler]:
    """Import a user's handler class.

    :param path: ``package.module:Class``
    :raises HandlerUnusable: it cannot be imported, or does not implement
        :class:`~synrepl.services.handler_interfaces.IHandler`
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a user's module may fail in any way
        raise unusable(path, error) from error
    faults = list(_contract_faults(found))
    if faults:
        raise HandlerUnusable(path=path, reason="; ".join(faults))
    return cast(type[handlers.Handler], found)


def check_handler(item: HandlerConfig, config: Config, catalogue: Catalogue) -> None:
    """Import a handler class, and check that it fits the process, without making an instance.

    :raises HandlerUnusable: with all reasons
    """
    cls = handler_class(item.path)
    reasons = list(_mismatches(cls, item, config, catalogue))
    if reasons:
        raise HandlerUnusable(path=item.path, reason="; ".join(reasons))


def verify_instance(path: str, handler: handlers.Handler) -> None:
    """Verify the attributes of an instance, which its constructor may set.

    :raises HandlerUnusable: it lacks ``streams`` or ``view``
    """
    try:
        verifyObject(_interface_of(type(handler)), handler)
    except Invalid as error:
        raise HandlerUnusable(path=path, reason="; ".join(interface_sentences(error))) from None


def unusable(path: str, error: BaseException) -> HandlerUnusable:
    """The error for an exception in a user's code, with its file and line."""
    reason = " ".join("".join(traceback.format_exception_only(error)).split())
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if not frame.filename.startswith(_OWN_FILES)]
    if user_frames and not isinstance(error, SyntaxError):  # its message has the location
        reason = f"{reason} ({user_frames[-1].filename}, line {user_frames[-1].lineno})"
    return HandlerUnusable(path=path, reason=reason)


def _contract_faults(found: object) -> Iterator[str]:
    """The reasons why an object cannot be used as a handler class."""
    if not isinstance(found, type):
        yield "it is not a class"
        return
    if not IHandler.implementedBy(found):
        yield (
            "it does not implement synrepl.IHandler: inherit from synrepl.Handler or"
            " synrepl.TransactionalHandler, or declare it with"
            " @zope.interface.implementer(synrepl.IHandler)"
        )
        return
    interface = _interface_of(found)
    try:
        verifyClass(interface, found)
    except Invalid as error:
        yield from interface_sentences(error)
        return
    if abstract := sorted(getattr(found, "__abstractmethods__", ())):
        yield f"it does not define {', '.join(abstract)}"
    elif interface is ITransactionalHandler and inspect.iscoroutinefunction(
        getattr(found, "apply", None)
    ):
        yield "its method apply must be a plain 'def': it runs in a thread of the database pool"


def _interface_of(cls: type) -> Any:
    return ITransactionalHandler if ITransactionalHandler.implementedBy(cls) else IHandler


def interface_sentences(error: Invalid) -> Iterator[str]:
    """A sentence for each violation of an interface."""
    for each in error.exceptions if isinstance(error, MultipleInvalid) else [error]:
        if isinstance(each, BrokenMethodImplementation):
            wanted, name = each.method.getSignatureString(), each.method.getName()
            yield f"its method {name} must accept {wanted}, but {each.mess}"
        elif isinstance(each, BrokenImplementation):
            yield _missing(each.name)
        else:
            yield str(each)


def _missing(member: Any) -> str:
    if hasattr(member, "getSignatureString"):
        return f"it has no method {member.getName()}{member.getSignatureString()}"
    return f"it has no attribute '{member.getName()}', {member.getDoc()}"


def _mismatches(
    cls: type[handlers.Handler], item: HandlerConfig, config: Config, catalogue: Catalogue
) -> Iterator[str]:
    try:
        inspect.signature(cls).bind(**item.config)
    except TypeError as error:
        yield f"its 'config' does not fit: {error}"
    if not isinstance(config, WorkerConfig):
        if not _overrides(cls, "on_start", "on_command"):
            yield "it takes facts only, and a master hands none to its handlers: let a worker have it"
        return
    if ITransactionalHandler.implementedBy(cls) and not config.has_database:
        yield "it is transactional, and works in the database; configure 'database'"
    yield from _bad_view(cls, config)
    streams = getattr(cls, "streams", None)  # a class of another base may set it when it is made
    if isinstance(streams, str):
        yield f"its 'streams' must be a set of names, not the text {streams!r}"
    elif isinstance(streams, Collection):  # not a property, which needs an instance
        yield from _unknown(streams, config, catalogue)


def _overrides(cls: type[handlers.Handler], *methods: str) -> bool:
    """Whether a class overrides any of the methods."""
    return any(getattr(cls, name) is not getattr(handlers.Handler, name) for name in methods)


def _bad_view(cls: type[handlers.Handler], config: WorkerConfig) -> Iterator[str]:
    view = getattr(cls, "view", None)
    if inspect.isdatadescriptor(view):  # only an instance knows
        return
    if view not in (None, "per_writer", "linear"):
        yield f"its 'view' must be 'per_writer' or 'linear' or None, not {view!r}"
        return
    given = "per_writer" if CLIENT_DIALECTS[config.dialect].per_writer else "linear"
    if config.master.foreign and view not in (None, given):
        dialect = "legacy" if view == "linear" else "modern"
        yield (
            f"it wants the {view} view, which a real Synapse gives in the {dialect} dialect"
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

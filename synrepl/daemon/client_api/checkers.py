"""Makes the checker of the client API: the users of a file, or the user's own class."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any, cast

from zope.interface.exceptions import Invalid
from zope.interface.verify import verifyClass, verifyObject

from synrepl.core.clock import Clock
from synrepl.core.errors import ConfigError
from synrepl.daemon.client_api.users_file import UsersFile
from synrepl.daemon.config.client_api import ClientApiConfig
from synrepl.daemon.config.config import Config
from synrepl.daemon.handlers import interface_sentences, unusable
from synrepl.services.clients.identity import ClientChecker, IClientChecker
from synrepl.services.clients.known_users import KnownUsers

#: The file in ``data_dir`` where none is configured.
USERS_FILE = "users.yaml"


class CheckerUnusable(ConfigError):
    """rooms.client_api.checker: {path} cannot be used: {reason}"""


class UsersNeeded(ConfigError):
    """rooms.client_api: name the file with the users under 'users', or the class that knows them under 'checker'"""


def make_checker(clock: Clock, config: Config, section: ClientApiConfig) -> ClientChecker:
    """Make the checker of a process.

    :raises UsersNeeded: :raises BadUsersFile: :raises BadSecretFile: :raises CheckerUnusable:
    """
    if section.checker is None:
        users = UsersFile(clock, users_path(config, section), config.server_name)
        return KnownUsers(clock, config.server_name, users)
    path = section.checker
    cls = checker_class(section)
    try:
        checker = cls(**section.checker_config)
        verifyObject(IClientChecker, checker)
    except Invalid as error:
        raise CheckerUnusable(path=path, reason="; ".join(interface_sentences(error))) from None
    except Exception as error:  # a user's class may fail in any way
        raise CheckerUnusable(path=path, reason=unusable(path, error).facts["reason"]) from error
    return cast(ClientChecker, checker)


def checker_class(section: ClientApiConfig) -> type[Any]:
    """Import a user's checker class, and verify it.

    :raises CheckerUnusable: it cannot be imported, or does not implement :class:`.IClientChecker`
    """
    path = str(section.checker)
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a user's module may fail in any way
        raise CheckerUnusable(path=path, reason=unusable(path, error).facts["reason"]) from error
    if not isinstance(found, type) or not IClientChecker.implementedBy(found):
        reason = (
            "it does not implement synrepl.IClientChecker: declare it with"
            " @zope.interface.implementer(synrepl.IClientChecker)"
        )
        raise CheckerUnusable(path=path, reason=reason)
    try:
        verifyClass(IClientChecker, found)
    except Invalid as error:
        raise CheckerUnusable(path=path, reason="; ".join(interface_sentences(error))) from None
    for method in ("login", "identify", "logout"):
        if not inspect.iscoroutinefunction(getattr(found, method)):
            raise CheckerUnusable(path=path, reason=f"its method {method} must be 'async def'")
    try:
        inspect.signature(found).bind(**section.checker_config)
    except TypeError as error:
        reason = f"its 'checker_config' does not fit: {error}"
        raise CheckerUnusable(path=path, reason=reason) from None
    return found


def users_path(config: Config, section: ClientApiConfig) -> Path:
    """The file with the users.

    :raises UsersNeeded: there is none
    """
    if section.users is not None:
        return section.users
    if config.data_dir is None:
        raise UsersNeeded()
    return config.data_dir / USERS_FILE

"""The file with the users of the client API and their passwords.

::

    users:
      "@alice:example.org": a long password
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from twisted.logger import Logger

from synrepl.core.clock import Clock
from synrepl.core.errors import ConfigError
from synrepl.core.private_files import read_private
from synrepl.daemon.config.yaml import parse_yaml
from synrepl.rooms import BadIdentifier, check_user_id, server_of

#: Maximum size of the file in bytes; some 10,000 users.
MAX_USERS_BYTES = 2**20

#: Minimum length of a password. Whoever has an access token can try passwords without asking the server.
MIN_PASSWORD = 8

#: Seconds between two looks whether the file has changed.
LOOK_EVERY_S = 2.0

_log = Logger()


class BadUsersFile(ConfigError):
    """the file with users {path}: {reason}"""


class UsersFile:
    """The users of a file, which is read again when it changes.

    A changed file that cannot be used changes nothing; an error is logged.

    :raises BadUsersFile: :raises BadSecretFile: it cannot be read, or others can read it
    """

    def __init__(self, clock: Clock, path: Path, server_name: str) -> None:
        self._clock = clock
        self._path = path
        self._server_name = server_name
        self._stamp = _stamp(path)
        self._users = read_users(path, server_name)
        self._looked_at = clock.seconds()

    def __call__(self) -> Mapping[str, str]:
        """The passwords by user ID."""
        now = self._clock.seconds()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            stamp = _stamp(self._path)
            if stamp != self._stamp:
                self._stamp = stamp
                self._read_again()
        return self._users

    def _read_again(self) -> None:
        try:
            self._users = read_users(self._path, self._server_name)
        except ConfigError as error:
            _log.error("users stay as they were: {error}", error=error)
        else:
            _log.info("{count} users are read from {path}", count=len(self._users), path=self._path)


def read_users(path: Path, server_name: str) -> Mapping[str, str]:
    """The passwords in a file, by user ID.

    :raises BadUsersFile: :raises BadSecretFile:
    """
    parsed = parse_yaml(read_private(path, MAX_USERS_BYTES).encode())
    if parsed.problems:
        problem = parsed.problems[0]
        raise BadUsersFile(path=path, reason=f"line {problem.position.line}: {problem.reason}")
    users = parsed.content.get("users")
    if parsed.content.keys() != {"users"} or not isinstance(users, dict):
        raise BadUsersFile(
            path=path, reason="it must have the key 'users', with a map, and no other"
        )
    for user_id, password in users.items():
        try:
            check_user_id(user_id)
        except BadIdentifier as error:
            raise BadUsersFile(path=path, reason=error) from None
        if server_of(user_id) != server_name:
            raise BadUsersFile(path=path, reason=f"{user_id} is not of {server_name}")
        if not isinstance(password, str) or len(password) < MIN_PASSWORD:
            reason = f"the password of {user_id} must be text of at least {MIN_PASSWORD} characters"
            raise BadUsersFile(path=path, reason=reason)
    return users


def _stamp(path: Path) -> object:
    """What changes when a file is written."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino

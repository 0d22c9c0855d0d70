"""Redis URLs on the command line; the password comes from a file or the environment."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import click

from synrepl.core.errors import ConfigError, ConfigErrors, SynreplError, errors_in
from synrepl.daemon.config.decode import Unfit
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.config.secret import Secret, read_secret

#: The environment variable that holds the password if no file does.
ENVIRONMENT = "SYNREPL_REDIS_PASSWORD"

#: The password option of commands that take a Redis URL.
password_option = click.option(
    "--redis-password-path",
    type=click.Path(path_type=Path),
    help=f"File with the password of Redis. Alternatively, set {ENVIRONMENT}.",
)

_SCHEMES = ("redis", "rediss", "unix")


class BadRedisUrl(ConfigError):
    """--redis: {reason}; write redis://[USER@]HOST[:PORT][/DATABASE], rediss://… for TLS (with ?ca_file=FILE for certificates of your own), or unix://[USER@]/PATH[?database=N]"""


class PasswordInUrl(ConfigError):
    """--redis: there is a password in the URL, where every user of this machine can read it in the process list; put it in a file and name that with --redis-password-path, or in the environment variable SYNREPL_REDIS_PASSWORD"""


def redis_from_options(url: str, password_path: Path | None) -> RedisConfig:
    """Build the Redis settings from the options of a command.

    :param password_path: the file with the password; None to use the environment variable, if set
    :raises BadRedisUrl: :raises PasswordInUrl:
    :raises BadSecretFile: the file cannot be read, or others can read it
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadRedisUrl(reason="it is no URL") from None
    if parts.password is not None:
        raise PasswordInUrl()
    if parts.scheme not in _SCHEMES:
        raise BadRedisUrl(reason="it begins with none of redis://, rediss://, unix://")
    on_socket = parts.scheme == "unix"
    if on_socket and (parts.hostname or not parts.path.strip("/")):
        raise BadRedisUrl(reason="unix:// needs the absolute path of a socket")
    if not on_socket and not parts.hostname:
        raise BadRedisUrl(reason="there is no host in it")
    options = _options(parts)
    number = options.pop("database", "0") if on_socket else (parts.path.strip("/") or "0")
    if not (number.isascii() and number.isdigit() and len(number) < 6):
        raise BadRedisUrl(reason="the database is no number")
    ca_file, insecure = options.pop("ca_file", None), options.pop("insecure", "false")
    if options or insecure not in ("true", "false"):
        raise BadRedisUrl(reason="there is something after '?' that nobody knows")
    try:
        return RedisConfig(
            host=parts.hostname or "",
            port=6379 if port is None else port,
            path=Path(unquote(parts.path)) if on_socket else None,
            username=unquote(parts.username) if parts.username else None,
            password=_password(password_path),
            database=int(number),
            tls=parts.scheme == "rediss",
            ca_file=None if ca_file is None else Path(ca_file),
            insecure=insecure == "true",
        )
    except (Unfit, ConfigErrors) as error:
        raise BadRedisUrl(reason="; ".join(map(_in_words, errors_in(error)))) from None


def _options(parts: SplitResult) -> dict[str, str]:
    return dict(parse_qsl(parts.query, keep_blank_values=True))


def _password(path: Path | None) -> Secret | None:
    if path is not None:
        return read_secret(path)
    found = os.environ.get(ENVIRONMENT, "")
    return Secret(ENVIRONMENT, found) if found else None


def _in_words(unfit: SynreplError) -> str:
    """A configuration error, rephrased for the parts of a URL."""
    key, reason = unfit.facts["key"], str(unfit.facts["reason"])
    if key == "tls" and "another machine" in reason:
        return "it is another machine: use rediss://, or accept plain text with ?insecure=true"
    if key == "password_path":
        return "a user has to have a password (--redis-password-path or SYNREPL_REDIS_PASSWORD)"
    return f"{key}: {reason}"

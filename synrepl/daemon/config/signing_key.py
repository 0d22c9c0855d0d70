"""The key with which a server signs the events of its users: a file in signedjson's format."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from signedjson.key import generate_signing_key, read_signing_keys, write_signing_keys
from signedjson.types import SigningKey

from synrepl.core.errors import ConfigError
from synrepl.daemon.config.config import Config
from synrepl.daemon.config.secret import Secret, read_secret

#: The file in ``data_dir`` where none is configured.
SIGNING_KEY_FILE = "signing.key"


class BadSigningKey(ConfigError):
    """rooms.signing_key: {path} is not a signing key: {reason}; it must have one line such as 'ed25519 a_1 <key in Base64>'"""


class SigningKeyNeeded(ConfigError):
    """rooms.signing_key: the events of this server's users are signed; name the file with the key, or put it into data_dir as {file}"""


def signing_key_of(config: Config) -> SigningKey | None:
    """The signing key of a process; None if it needs none.

    :raises SigningKeyNeeded: :raises BadSigningKey: :raises BadSecretFile:
    """
    rooms = config.rooms
    if rooms is None:
        return None
    secret = rooms.signing_key
    if secret is None and config.data_dir is not None:
        path = config.data_dir / SIGNING_KEY_FILE
        secret = read_secret(path) if path.exists() else None
    if secret is not None:
        return parse_signing_key(secret)
    if rooms.clients is not None or rooms.federation is not None:
        raise SigningKeyNeeded(file=SIGNING_KEY_FILE)
    return None


def signing_key_path(config: Config) -> Path:
    """The file with the signing key of a process.

    :raises SigningKeyNeeded: none is configured
    """
    if config.rooms is not None and config.rooms.signing_key is not None:
        return Path(config.rooms.signing_key.shown)
    if config.data_dir is None:
        raise SigningKeyNeeded(file=SIGNING_KEY_FILE)
    return config.data_dir / SIGNING_KEY_FILE


def parse_signing_key(secret: Secret) -> SigningKey:
    """The only key in a file.

    :raises BadSigningKey: there is none, or several
    """
    try:
        keys = read_signing_keys(secret.reveal().splitlines())
    except Exception as error:  # signedjson does not say what it raises
        reason = type(error).__name__  # the message could have a part of the key
        raise BadSigningKey(path=secret, reason=reason) from None
    if len(keys) != 1:
        raise BadSigningKey(path=secret, reason=f"there are {len(keys)} keys in it")
    return keys[0]


def new_signing_key(version: str) -> str:
    """The text of a file with a new key.

    :param version: the part of the key's ID after ``ed25519:``
    """
    text = StringIO()
    write_signing_keys(text, (generate_signing_key(version),))
    return text.getvalue()

"""The types of single values in the configuration, as annotations."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from synrepl.core import names
from synrepl.core.private_files import readers
from synrepl.core.tokens import MAX_TOKEN
from synrepl.daemon.config import units
from synrepl.daemon.config.decode import Scalar
from synrepl.daemon.config.files import SettingLocation
from synrepl.daemon.config.secret import Secret, dsn_secret, read_secret
from synrepl.driver.dsn import holds_password
from synrepl.streams.columns import parse_type

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?", re.ASCII)
_OBJECT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("not text")
    return value


def _number(lowest: int, highest: int) -> Scalar:
    def read(value: Any, place: SettingLocation) -> int:
        if type(value) is not int or not lowest <= value <= highest:
            raise ValueError("out of range")
        return value

    return Scalar(f"a whole number between {lowest} and {highest}", read)


def _name(wanted: str, check: Callable[[str], str]) -> Scalar:
    return Scalar(wanted, lambda value, place: check(_text(value)))


def _positive(value: Any, place: SettingLocation) -> float:
    seconds = units.duration(value)
    if seconds == 0:
        raise ValueError("zero")
    return seconds


def _path(value: Any, place: SettingLocation) -> Path:
    """Relative paths are relative to the file that contains them, so a directory can be moved."""
    text = _text(value)
    if "\0" in text:
        raise ValueError("not a path")
    return place.file.absolute().parent / text


def _secret_file(value: Any, place: SettingLocation) -> Secret:
    return read_secret(_path(value, place))


def _dsn(value: Any, place: SettingLocation) -> Secret:
    secret = dsn_secret(_text(value))
    if not holds_password(secret.reveal()):
        return secret
    status = place.file.stat()
    return replace(secret, readers=readers(status.st_mode, status.st_uid))


def _column_type(value: Any, place: SettingLocation) -> str:
    parse_type(_text(value))
    return str(value)


def _host_name(value: Any, place: SettingLocation) -> str:
    text = _text(value).removesuffix(".")
    if not _HOST_NAME.fullmatch(text) and not _is_address(text):
        raise ValueError("not a host name")
    return text.lower()


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _object_path(value: Any, place: SettingLocation) -> str:
    if not _OBJECT_PATH.fullmatch(_text(value)):
        raise ValueError("not an object path")
    return str(value)


def _http_url(value: Any, place: SettingLocation) -> str:
    parts = urlsplit(_text(value))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ValueError("not a base URL")
    return str(value).rstrip("/")


Port = Annotated[int, _number(0, 65535)]
RemotePort = Annotated[int, _number(1, 65535)]
Count = Annotated[int, _number(1, 10_000_000)]
RedisDatabase = Annotated[int, _number(0, 65535)]
#: A position in a stream.
TokenValue = Annotated[int, _number(0, MAX_TOKEN)]

#: Seconds; zero is allowed.
Duration = Annotated[
    float,
    Scalar("a duration such as '500ms', '15s', '5m' or '7d'", lambda v, place: units.duration(v)),
]
#: Seconds; more than zero.
Timeout = Annotated[
    float, Scalar("a duration above zero such as '500ms', '15s', '5m' or '7d'", _positive)
]
#: Bytes.
Size = Annotated[int, Scalar("a size such as '64KiB' or '16MiB'", lambda v, place: units.size(v))]

ServerName = Annotated[str, _name("a server name", names.server_name)]
WriterName = Annotated[str, _name("an instance name", names.writer_name)]
HandlerName = Annotated[str, _name("a handler name", names.handler_name)]
FollowerName = Annotated[str, _name("a follower name", names.follower_name)]
StreamName = Annotated[str, _name("a stream name", names.stream_name)]
ColumnType = Annotated[str, Scalar("a column type such as 'text' or 'bigint?'", _column_type)]
ColumnName = Annotated[str, _name("a column name", names.column_name)]

Directory = Annotated[Path, Scalar("a directory", _path)]
File = Annotated[Path, Scalar("the path of a file", _path)]
SecretFile = Annotated[Secret, Scalar("the path of a file with the secret", _secret_file)]
Dsn = Annotated[
    Secret,
    Scalar(
        "a DSN (postgresql://… or key=value pairs)",
        _dsn,
        private=True,
    ),
]
ObjectPath = Annotated[str, Scalar("a class as 'package.module:Class'", _object_path)]
HostName = Annotated[str, Scalar("a host name or address without a port", _host_name)]
HttpUrl = Annotated[str, Scalar("a base URL such as 'http://127.0.0.1:9393'", _http_url)]

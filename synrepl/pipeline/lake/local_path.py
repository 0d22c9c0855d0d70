"""Validates the path of a lake."""

from __future__ import annotations

import os
import re
from pathlib import Path

from synrepl.core.errors import ConfigError

#: A URL scheme. A file name may look like one; its absolute path does not.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class LakeAtUrl(ConfigError):
    """{path!r} is a URL ({scheme}), and a lake is a folder of a file system: object stores and HDFS are not supported; mount the storage and give the folder's path (a folder whose name really begins like this: its absolute path)"""


def local_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a lake's folder.

    :raises LakeAtUrl: it begins with a URL scheme
    """
    text = os.fspath(path)
    if scheme := _SCHEME.match(text):
        raise LakeAtUrl(path=text, scheme=scheme[0])
    return Path(text).absolute()

"""Where a lake is stored: a folder of a file system, or below a URL of an object store.

A folder is a :class:`pathlib.Path`. An :class:`ObjectPath` has the few methods of one that a lake
needs, so that tables, locks and tasks are written once; what pathlib has no method for are functions
of either. Object stores are reached through delta-rs, as the tables in them are: one client, and the
credentials of the usual variables (``AWS_ACCESS_KEY_ID``, ``GOOGLE_APPLICATION_CREDENTIALS``,
``AZURE_STORAGE_ACCOUNT_KEY``, …), which each machine that reads or writes needs.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as arrow_fs
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from synrepl.core.errors import ConfigError

#: A URL scheme. A file name may look like one; its absolute path does not.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")

#: The schemes of object stores, and what delta-rs calls them.
OBJECT_STORES = {"s3": "s3", "s3a": "s3", "gs": "gs", "abfs": "abfss", "abfss": "abfss"}

_COLOURS = re.compile(r"\x1b\[[0-9;]*m|↳")

#: What delta-rs and its kernel append to a message: a stack of calls, and values of their own types.
_INTERNALS = re.compile(r"\n\s+0: .*|: ParsedLogPath \{.*", re.DOTALL)

#: Size of the parts in which files are sent to an object store, in bytes.
_PART_BYTES = 1 << 20


class LakeAtUrl(ConfigError):
    """{path!r} is no place for a lake: want a folder, file:///…, s3://bucket/…, gs://bucket/… or abfss://container@account.dfs.core.windows.net/… without a query (a folder whose name really begins like a URL: its absolute path)"""


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """An object, or all objects below a prefix, of an object store; like a :class:`pathlib.Path`.

    Objects appear whole or not at all, and are durable as soon as they exist. There are no folders:
    a prefix exists as long as an object below it does.

    :ivar root: the URL of the lake
    :ivar key: the path below it; "" for the lake itself
    """

    root: str
    key: str = ""

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.root, f"{self.key}/{name}" if self.key else name)

    def __str__(self) -> str:
        return f"{self.root}/{self.key}" if self.key else self.root

    @property
    def name(self) -> str:
        """The last component."""
        return str(self).rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """The prefix that it is in; that of the lake is the lake."""
        return ObjectPath(self.root, self.key.rpartition("/")[0])

    def iterdir(self) -> Iterator[ObjectPath]:
        """What is directly below this prefix; nothing if there is no such prefix."""
        selector = arrow_fs.FileSelector(self.key, allow_not_found=True)
        for info in _file_system(self.root).get_file_info(selector):
            yield self / info.path.rpartition("/")[2]

    def is_dir(self) -> bool:
        """True if there are objects below this prefix."""
        return any(True for _ in self.iterdir())

    def size(self) -> int:
        """Its size in bytes.

        :raises FileNotFoundError: there is no such object
        """
        return int(self._info().size)

    def modified(self) -> float:
        """When it was written, in seconds since the epoch.

        :raises FileNotFoundError: there is no such object
        """
        return float(self._info().mtime.timestamp())

    def _info(self) -> arrow_fs.FileInfo:
        (info,) = _file_system(self.root).get_file_info([self.key])
        if info.type is not arrow_fs.FileType.File:
            raise FileNotFoundError(f"no such object: {self}")
        return info

    def unlink(self) -> None:
        """Delete the object."""
        _file_system(self.root).delete_file(self.key)


class ObjectUnreadable(OSError):
    """An object store does not give what an object contains, which may be as it was written."""


#: A folder or file of a lake.
LakePath = Path | ObjectPath


def lake_location(path: str | os.PathLike[str] | ObjectPath) -> LakePath:
    """Where a lake is: the absolute path of a folder, or the URL of an object store.

    :raises LakeAtUrl: it is another URL
    """
    if isinstance(path, ObjectPath):
        return path
    text = os.fspath(path)
    found = _SCHEME.match(text)
    if found is None:
        return Path(text).absolute()
    scheme, url = found[1].lower(), urlsplit(text)
    if url.query or url.fragment:
        raise LakeAtUrl(path=text)
    if scheme == "file" and url.netloc in ("", "localhost") and url.path.startswith("/"):
        return Path(unquote(url.path))
    if scheme not in OBJECT_STORES or not url.netloc:
        raise LakeAtUrl(path=text)
    return ObjectPath(f"{OBJECT_STORES[scheme]}://{url.netloc}{url.path.rstrip('/')}")


def read_bytes(path: LakePath) -> bytes:
    """The contents of a small file.

    :raises FileNotFoundError: :raises OSError:
    """
    if isinstance(path, Path):
        return path.read_bytes()
    with open_input(path) as file:
        return bytes(file.read())


def replace_bytes(path: LakePath, data: bytes, *, mode: int = 0o644) -> None:
    """Write a small file, or replace it; it is durable, and never seen incomplete.

    :param mode: its permissions in a file system
    :raises OSError:
    """
    if not isinstance(path, Path):
        with open_output(path) as sink:
            sink.write(data)
        return
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync(path.parent)
    except OSError:
        if draft.is_file():
            draft.unlink()
        raise


@contextmanager
def open_input(path: LakePath) -> Iterator[Any]:
    """Open a file for reading; closed afterwards.

    :raises FileNotFoundError: :raises ObjectUnreadable: :raises OSError:
    """
    if isinstance(path, Path):
        with path.open("rb") as opened:
            yield opened
    else:
        with _file_system(path.root).open_input_file(path.key) as file:
            yield file


def input_size(opened: Any) -> int:
    """The size in bytes of a file that :func:`open_input` opened."""
    if isinstance(opened, pa.NativeFile):
        return int(opened.size())
    return os.fstat(opened.fileno()).st_size


def file_size(path: LakePath) -> int:
    """The size of a file in bytes.

    A network file system asks its server for a name that this machine has not looked up before.

    :raises FileNotFoundError: :raises OSError:
    """
    if isinstance(path, ObjectPath):
        return path.size()
    return path.stat().st_size


def modification_time(path: LakePath) -> float:
    """When a file was written, in seconds since the epoch.

    :raises FileNotFoundError: :raises OSError:
    """
    if isinstance(path, ObjectPath):
        return path.modified()
    return path.stat().st_mtime


def open_output(path: LakePath) -> Any:
    """Open a new file for writing; to be closed, and then :func:`make_durable`."""
    if isinstance(path, Path):
        return pa.OSFile(str(path), "wb")
    stream = _file_system(path.root).open_output_stream(path.key)
    # What it is given has to be bytes, which only a buffered stream passes on.
    return pa.BufferedOutputStream(stream, _PART_BYTES)


def make_durable(path: LakePath) -> None:
    """Make sure that a file that was closed survives a loss of power; objects do as soon as they exist."""
    if isinstance(path, ObjectPath):
        return
    sync(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Make sure that the contents of a file, or the names in a folder, survive a loss of power.

    :raises OSError:
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def ensure_folder(path: LakePath) -> None:
    """Make a folder and those that it is in, which survive a loss of power; object stores need none.

    :raises OSError:
    """
    if isinstance(path, Path) and not path.is_dir():
        new = [each for each in (path, *path.parents) if not each.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for each in new:
            sync(each.parent)


def remove_tree(path: LakePath) -> None:
    """Delete a folder with all that is in it."""
    if isinstance(path, Path):
        shutil.rmtree(path)
    else:
        _file_system(path.root).delete_dir(path.key)


def plain_error(error: BaseException) -> str:
    """The text of an error in one line; those of object stores have many, with colours."""
    return " ".join(_INTERNALS.sub("", _COLOURS.sub("", str(error))).split())[:500]


def reason_of(error: OSError) -> str:
    """Why a file could not be read or written, without its name; errors of object stores have no number."""
    return plain_error(error) if error.errno is None else os.strerror(error.errno)


@lru_cache(maxsize=8)
def _file_system(root: str) -> arrow_fs.FileSystem:
    with _reading_objects():  # as where the credentials of this machine cannot be read
        try:
            return arrow_fs.PyFileSystem(_ObjectStore(root))
        except DeltaError as error:  # of a URL that can be none of an object
            raise OSError(str(error)) from None


class _ObjectStore(DeltaStorageHandler):
    """delta-rs's client, whose errors of reading have a class of their own.

    Arrow raises the same class for contents that it cannot decode.
    """

    def open_input_file(self, path: str) -> pa.PythonFile:
        with _reading_objects():
            return pa.PythonFile(_ObjectInput(self._handler.open_input_file(path)))


class _ObjectInput:
    """An open object of :class:`_ObjectStore`."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def read(self, *size: int) -> Any:
        with _reading_objects():
            return self._opened.read(*size)


@contextmanager
def _reading_objects() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ObjectUnreadable(str(error)) from None

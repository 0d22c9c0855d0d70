"""From ``-c`` arguments to one map: which files, in which order, and what each key came from."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from synrepl.core.errors import ConfigError

MAX_FILE_BYTES = 256 * 1024
MAX_FILES = 100

#: Where a value stands in a document: keys, and indexes into lists.
KeyPath = tuple[str | int, ...]


class UnreadableConfig(ConfigError):
    """configuration {file} cannot be read: {reason}"""


class BadYaml(ConfigError):
    """configuration {file} is not usable YAML: {reason}"""


class NoConfig(ConfigError):
    """{directory} holds no *.yaml file; name a file, or write one with 'synrepl init'"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was written: the file, and the key as a person writes it."""

    file: Path
    key: str


class Document:
    """The merged content of all files of one process.

    Later files override earlier ones key by key; where both have a map under a
    top-level key, the two maps are merged one level deep.
    """

    def __init__(self, files: Sequence[tuple[Path, dict[str, Any]]]) -> None:
        self.files = [file for file, _ in files]
        self.content: dict[str, Any] = {}
        self._origin: dict[KeyPath, Path] = {}
        for file, content in files:
            self._merge(file, content)

    def _merge(self, file: Path, content: dict[str, Any]) -> None:
        for key, value in content.items():
            before = self.content.get(key)
            if isinstance(before, dict) and isinstance(value, dict):
                self.content[key] = {**before, **value}
                self._origin.update({(key, inner): file for inner in value})
            else:
                self.content[key] = value
                stale = [path for path in self._origin if path[0] == key]
                for path in stale:
                    del self._origin[path]
                self._origin[(key,)] = file

    def place(self, path: KeyPath) -> Place:
        """The place of the value at ``path``; of a missing one, where it would be expected."""
        fallback = self.files[-1]
        file = self._origin.get(path[:2]) or self._origin.get(path[:1]) or fallback
        return Place(file, _spelt(path))


def read(paths: Sequence[Path]) -> Document:
    """Read files, and the ``*.yaml`` files of directories in the order of their names.

    :raises UnreadableConfig: a path cannot be read or is too large
    :raises BadYaml: a file is malformed, repeats a key or is not a map
    :raises NoConfig: a directory without any
    """
    files = [file for path in paths for file in _files_of(path)]
    if len(files) > MAX_FILES:
        raise UnreadableConfig(file=paths[0], reason=f"more than {MAX_FILES} files in all")
    return Document([(file, _load(file)) for file in files])


def _files_of(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    try:
        found = sorted(path.glob("*.yaml"))
    except OSError as error:
        raise UnreadableConfig(file=path, reason=error.strerror) from None
    if not found:
        raise NoConfig(directory=path)
    yield from found


def _load(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UnreadableConfig(file=file, reason=error.strerror) from None
    if len(data) > MAX_FILE_BYTES:
        raise UnreadableConfig(file=file, reason=f"larger than {MAX_FILE_BYTES // 1024} KiB")
    try:
        content = yaml.load(data, _StrictLoader)  # noqa: S506 (a SafeLoader)
    except RecursionError:
        raise BadYaml(file=file, reason="nested too deeply") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise BadYaml(file=file, reason=" ".join(str(error).split())) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BadYaml(file=file, reason="the top level is not a map of 'key: value' lines")
    return content


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses what makes a file mean something else than it seems to.

    Repeated keys (the last would win silently), keys that are not text
    (``no:`` is a boolean in YAML), and aliases (a small file can unfold to a huge one).
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem=f"alias *{event.anchor} is not allowed; write the value out",
                problem_mark=event.start_mark,
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            problem = None
            if not isinstance(key, str):
                problem = f"key {key!r} is not text; put it in quotes"
            elif key in seen:
                problem = f"key {key!r} appears twice in one map"
            if problem is not None:
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _spelt(path: KeyPath) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text

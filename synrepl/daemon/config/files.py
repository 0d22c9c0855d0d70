"""Reads the files of ``-c`` arguments, and merges them into one map that remembers locations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synrepl.core.errors import ConfigError
from synrepl.daemon.config.yaml import KeyPath as KeyPath
from synrepl.daemon.config.yaml import ParsedYaml, YamlPosition, parse_yaml

MAX_FILE_BYTES = 256 * 1024
MAX_FILES = 100


class UnreadableConfig(ConfigError):
    """configuration {file} cannot be read: {reason}"""


class BadYaml(ConfigError):
    """configuration {place} is not usable YAML: {reason}"""


class NoConfig(ConfigError):
    """{directory} holds no *.yaml file; name a file, or write one with 'synrepl init'"""


@dataclass(frozen=True, slots=True)
class SettingLocation:
    """The location of a value: the file, the position in it, and the key as a person writes it."""

    file: Path
    key: str
    position: YamlPosition

    def __str__(self) -> str:
        return _spelt(self.file, self.position)


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """An error of a configuration, and its position in the order of the files."""

    order: tuple[int, YamlPosition]
    error: ConfigError


def in_order(faults: Iterable[ConfigFault]) -> list[ConfigError]:
    """The errors, file by file and line by line."""
    return [fault.error for fault in sorted(faults, key=lambda fault: fault.order)]


class Document:
    """The merged content of all files of one process.

    Later files override earlier ones key by key; where both have a map under a
    top-level key, the two maps are merged one level deep.

    :ivar faults: faults of the files themselves; if there are any, ``content`` may be incomplete
    """

    def __init__(
        self, files: Sequence[tuple[Path, ParsedYaml]], faults: Sequence[ConfigFault] = ()
    ) -> None:
        self.files = [file for file, _ in files]
        self.content: dict[str, Any] = {}
        self.faults = list(faults)
        self._origin: dict[KeyPath, Path] = {}
        self._positions = {file: parsed.positions for file, parsed in files}
        for file, parsed in files:
            self._merge(file, parsed.content)

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

    def place(self, path: KeyPath) -> SettingLocation:
        """The location of the value at ``path``, or where a missing one would be expected."""
        file = self._origin.get(path[:2]) or self._origin.get(path[:1]) or self.files[-1]
        positions = self._positions[file]
        known = (path[:length] for length in range(len(path), 0, -1) if path[:length] in positions)
        nearest = next(known, None)
        position = YamlPosition() if nearest is None else positions[nearest]
        return SettingLocation(file, spelt_key(path), position)

    def fault(self, path: KeyPath, error: ConfigError) -> ConfigFault:
        """An error about the value at ``path``."""
        place = self.place(path)
        return ConfigFault((self.files.index(place.file), place.position), error)


def read(paths: Sequence[Path]) -> Document:
    """Read files, and the ``*.yaml`` files of directories in the order of their names.

    Unreadable and malformed files become ``faults`` of the document.
    """
    parsed: list[tuple[Path, ParsedYaml]] = []
    faults: list[ConfigFault] = []

    def note(file: Path, error: ConfigError) -> None:
        parsed.append((file, ParsedYaml({}, {}, [])))
        faults.append(ConfigFault((len(parsed) - 1, YamlPosition()), error))

    for path in paths:
        try:
            files = _files_of(path)
        except ConfigError as error:
            note(path, error)
            continue
        for file in files[: MAX_FILES + 1]:
            try:
                parsed.append((file, _load(file)))
            except ConfigError as error:
                note(file, error)
        if len(parsed) > MAX_FILES:
            note(path, UnreadableConfig(file=path, reason=f"more than {MAX_FILES} files in all"))
            break
    for number, (file, found) in enumerate(parsed):
        for problem in found.problems:
            place = _spelt(file, problem.position)
            bad = BadYaml(place=place, reason=problem.reason)
            faults.append(ConfigFault((number, problem.position), bad))
    return Document(parsed, faults)


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    try:
        found = sorted(path.glob("*.yaml"))
    except OSError as error:
        raise UnreadableConfig(file=path, reason=error.strerror) from None
    if not found:
        raise NoConfig(directory=path)
    return found


def _load(file: Path) -> ParsedYaml:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UnreadableConfig(file=file, reason=error.strerror) from None
    if len(data) > MAX_FILE_BYTES:
        raise UnreadableConfig(file=file, reason=f"larger than {MAX_FILE_BYTES // 1024} KiB")
    return parse_yaml(data)


def _spelt(file: Path, position: YamlPosition) -> str:
    return f"{file}:{position.line}:{position.column}" if position.line else str(file)


def spelt_key(path: KeyPath) -> str:
    """The key as a person writes it, such as ``listeners[0].port``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text

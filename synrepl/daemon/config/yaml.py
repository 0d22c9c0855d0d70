"""Parses a YAML file into plain data, with the positions of all keys and problems."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import yaml

#: Path of a value in a document: keys of maps and indexes of lists.
KeyPath = tuple[str | int, ...]


#: Stands for a value that cannot be read, which is among the problems of its file.
UNREADABLE: Final = object()


class YamlPosition(NamedTuple):
    """A line and a column, both from 1; 0 for the file as a whole."""

    line: int = 0
    column: int = 0


@dataclass(frozen=True, slots=True)
class YamlProblem:
    """Something that makes a file unusable or misleading."""

    position: YamlPosition
    reason: str


@dataclass(frozen=True, slots=True)
class ParsedYaml:
    """The content of a file.

    :ivar content: a map without the values that have problems; empty if there is no map
    :ivar positions: positions of all keys and list items
    """

    content: dict[str, Any]
    positions: dict[KeyPath, YamlPosition]
    problems: list[YamlProblem]


def parse_yaml(data: bytes) -> ParsedYaml:
    """Parse a YAML document, and continue after problems if the rest can be read.

    It is stricter than ``yaml.safe_load``: repeated keys (the last would win silently), keys
    that are not text (``no:`` is a boolean in YAML), aliases (a small file can expand
    to a huge one), merge keys and tags of any kind are problems.
    """
    try:
        text = data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        return _failed(YamlPosition(line, column), "this is not UTF-8")
    try:
        loader = _StrictLoader(text)
        node = loader.get_single_node()
        builder = _Builder(loader)
        content = None if node is None else builder.value(node, ())
    except RecursionError:
        return _failed(YamlPosition(), "nested too deeply")
    except yaml.MarkedYAMLError as error:
        return _failed(_position(error.problem_mark or error.context_mark), _sentence(error))
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        position = YamlPosition(before.count("\n") + 1, len(before) - before.rfind("\n"))
        return _failed(position, f"character {error.character:#x} is not allowed")
    if content is not None and not isinstance(content, dict):
        reason = "the top level is not a map of 'key: value' lines"
        builder.problems.append(YamlProblem(YamlPosition(1, 1), reason))
        content = None
    return ParsedYaml(content or {}, builder.positions, builder.problems)


class _StrictLoader(yaml.SafeLoader):
    """A SafeLoader that records aliases instead of expanding them."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.aliases: list[YamlProblem] = []

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if not self.check_event(yaml.AliasEvent):
            return super().compose_node(parent, index)
        event = self.get_event()  # type: ignore[no-untyped-call]
        reason = f"alias *{event.anchor} is not allowed; write the value out"
        self.aliases.append(YamlProblem(_position(event.start_mark), reason))
        return yaml.ScalarNode(_ALIAS, event.anchor, event.start_mark, event.end_mark)


class _Builder:
    """Converts nodes to plain data."""

    def __init__(self, loader: _StrictLoader) -> None:
        self._loader = loader
        self.positions: dict[KeyPath, YamlPosition] = {}
        self.problems = loader.aliases

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if node.tag not in (_MAP, _LIST):
            self._problem(node, f"the tag {node.tag} is not allowed; leave it out")
        if isinstance(node, yaml.MappingNode):
            return self._map(node, path)
        items = []
        for index, item in enumerate(node.value):
            self.positions[(*path, index)] = _position(item.start_mark)
            items.append(self.value(item, (*path, index)))
        return items

    def _map(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if key is None:
                continue
            if key in content:
                self._problem(key_node, f"key {key!r} appears twice in one map")
                continue
            self.positions[(*path, key)] = _position(key_node.start_mark)
            content[key] = self.value(value_node, (*path, key))
        return content

    def _key(self, node: yaml.Node) -> str | None:
        if node.tag == _MERGE:
            self._problem(node, "merge keys (<<) are not allowed; write the settings out")
            return None
        if not isinstance(node, yaml.ScalarNode):
            self._problem(node, "a key has to be text")
            return None
        key = self._scalar(node)
        if isinstance(key, str):
            return key
        if key is not UNREADABLE:
            self._problem(node, f"key {key!r} is not text; put it in quotes")
        return None

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        if node.tag == _ALIAS:
            return UNREADABLE
        try:
            return self._loader.construct_object(node)
        except yaml.MarkedYAMLError:
            self._problem(node, f"the tag {node.tag} is not allowed; leave it out")
        except ValueError as error:
            self._problem(node, f"{node.value[:60]!r} cannot be read ({error}); put it in quotes")
        return UNREADABLE

    def _problem(self, node: yaml.Node, reason: str) -> None:
        self.problems.append(YamlProblem(_position(node.start_mark), reason))


_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_MAP, _LIST, _MERGE = (f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "merge"))
_ALIAS = "!alias"


def _failed(position: YamlPosition, reason: str) -> ParsedYaml:
    return ParsedYaml({}, {}, [YamlProblem(position, reason)])


def _position(mark: yaml.Mark | None) -> YamlPosition:
    return YamlPosition() if mark is None else YamlPosition(mark.line + 1, mark.column + 1)


def _sentence(error: yaml.MarkedYAMLError) -> str:
    """The parser's message, without its excerpts of the file, which may contain a secret."""
    text = error.problem or "it cannot be read"
    if error.context:
        text += f", {error.context}"
    if error.context_mark is not None:
        text += f" from line {error.context_mark.line + 1} on"
    return " ".join(text.split())

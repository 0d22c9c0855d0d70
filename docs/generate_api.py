"""Makes ``docs/api.md`` from the docstrings of what ``synrepl`` and ``synrepl.pipeline`` offer.

python docs/generate_api.py            writes the page
python docs/generate_api.py --check    exits with 1 when the page is not up to date
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import griffe

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "api.md"
WIDTH = 100

INTRODUCTION = """\
<!-- Made by docs/generate_api.py from the docstrings; `tox -e api` makes it again. -->

# Python API

Applications import from `synrepl`; rooms are in `synrepl.rooms` ([rooms.md](rooms.md)), Spark is in
`synrepl.pipeline`. What is not listed here may change with any version.
"""


@dataclass(frozen=True)
class Section:
    """A part of the page.

    :ivar names: in order; a value lists the members that are documented, None for all public ones
    """

    title: str
    text: str
    package: str
    names: dict[str, Sequence[str] | None]


SECTIONS = (
    Section(
        "Handlers",
        "Classes of yours that a worker hands facts to. They are named in its configuration, as"
        " `handlers: [package.module:Class]`.",
        "synrepl",
        {
            "Handler": None,
            "TransactionalHandler": None,
            "RoomHandler": None,
            "TransactionalRoomHandler": None,
            "RoomEvent": None,
            "IHandler": (),
            "ITransactionalHandler": (),
            "Batch": None,
            "Fact": None,
            "Row": None,
            "Access": None,
        },
    ),
    Section(
        "Logins of Matrix clients",
        "A class of yours that decides who may log in. It is named in the configuration, as `checker` of"
        " `client_api`: [client-api.md](client-api.md).",
        "synrepl",
        {
            "IClientChecker": None,
            "ClientIdentity": None,
            "ClientLogin": None,
            "LoginRefused": None,
        },
    ),
    Section(
        "Commands",
        "What processes tell each other besides facts, by `Access.commands` and `Handler.on_command`:"
        " [commands.md](commands.md).",
        "synrepl",
        {
            "Commands": None,
            "SyncingUsers": None,
            "Command": (),
            "UserSync": None,
            "ClearUserSync": None,
            "FederationAck": None,
            "RemovePusher": None,
            "RemoteServerUp": None,
            "UserIp": None,
            "InvalidateCache": None,
        },
    ),
    Section(
        "The database",
        "What `Access.database` gives, and what `TransactionalHandler.apply` works with.",
        "synrepl",
        {"Database": None, "Transaction": None, "Isolation": None},
    ),
    Section(
        "The room store",
        "Rooms of Matrix in the database: [rooms.md](rooms.md).",
        "synrepl",
        {
            "open_rooms": None,
            "RoomStore": None,
            "EventCopy": None,
            "PageRequest": None,
            "PageOrder": (),
            "Messages": None,
            "ServedEvents": None,
            "StateChange": None,
            "RoomFigures": None,
            "RoomEnds": None,
            "RoomMember": None,
            "GraphEvent": None,
            "StateExplanation": None,
            "AuthExplanation": None,
            "RefusalExplanation": None,
            "VisibilityExplanation": None,
        },
    ),
    Section(
        "Caches",
        "Functions that keep what they found until it changes: [caches.md](caches.md).",
        "synrepl",
        {
            "cached": None,
            "cached_list": None,
            "cache_registry": None,
            "Caches": ("expand", "on_rows", "index", "stats"),
            "Changes": None,
            "ChangeOutbox": ("invalidate", "invalidate_all", "append"),
            "Changed": None,
            "Invalidates": None,
            "Marks": None,
            "columns_key": None,
            "Expansion": (),
            "ChangeIndex": ("has_changed", "changed_among", "any_since", "all_since"),
            "HasChanged": None,
        },
    ),
    Section(
        "Clients",
        "For an application of any kind, which needs neither Twisted nor a configuration.",
        "synrepl",
        {"Client": None, "Appended": None, "AsyncClient": None},
    ),
    Section(
        "Errors",
        "All are of one family. The text of an error is what is shown here, with its values.",
        "synrepl",
        {
            "SynreplError": None,
            "InputError": None,
            "BadRows": None,
            "BadKey": None,
            "BadUrl": None,
            "BadSecret": None,
            "BadCache": None,
            "BadInvalidation": None,
            "UnusableKey": None,
            "UnknownStream": None,
            "BadCommand": None,
            "UnknownRoom": None,
            "EventNotStored": None,
            "EventInOtherRoom": None,
            "EventIsOutlier": None,
            "EventRejected": None,
            "ConfigError": None,
            "Unavailable": None,
            "ServerUnreachable": None,
            "ServerBusy": None,
            "AppendUnconfirmed": None,
            "WaitExpired": None,
            "WaitTimedOut": None,
            "DatabaseAway": None,
            "TooManyUnsent": None,
            "PartialEvent": None,
            "Refused": None,
            "CommandNotInDialect": None,
            "SecretRequired": None,
            "ServerUntrusted": None,
            "ServerRefused": None,
            "AppendRefused": None,
            "ProtocolError": None,
            "UnusableAnswer": None,
            "StorageError": None,
            "QueryFailed": None,
            "UniqueViolation": None,
            "CommitUnknown": None,
            "CorruptEvent": None,
            "MissingJson": None,
            "CorruptState": None,
        },
    ),
    Section(
        "Spark",
        "With the extra `synrepl[spark]`: [pipeline.md](pipeline.md).",
        "synrepl.pipeline",
        {
            "register": None,
            "tokens_behind": None,
            "latest_by_key": None,
            "changes_by_key": None,
            "upsert_into": None,
            "create_views": None,
            "open_rooms": None,
            "RoomFrames": (),
            "state_at_every_event": None,
            "verify_rooms": None,
            "VerifyOptions": (),
            "check_groups": None,
            "compact_groups": None,
            "apply_compaction": None,
            "visible_events": None,
            "diverging_rooms": None,
            "room_growth": None,
            "states_in_lake": None,
        },
    ),
)

#: Names that are bound methods, which their source does not say.
BOUND = {
    "cached": "synrepl.caches.registry.Caches.cached",
    "cached_list": "synrepl.caches.registry.Caches.cached_list",
}

_MADE_BY_USERS = ("Client", "AsyncClient")

_ROLE = re.compile(r":(?:class|meth|attr|func|mod|data|exc):`([^`]+)`", re.DOTALL)
_ERRORS = "Errors"


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    wanted = page()
    if parser.parse_args().check:
        is_current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == wanted
        if not is_current:
            print(f"{PAGE} is not up to date: run 'tox -e api'", file=sys.stderr)
        return 0 if is_current else 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


def page() -> str:
    """The page, as it should be."""
    loaded = griffe.load(
        "synrepl", search_paths=[REPOSITORY], docstring_parser="sphinx", resolve_aliases=True
    )
    return Page(loaded).text()


class Page:
    """Renders the sections.

    :param loaded: the package, as griffe reads it
    """

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded
        self._listed = {name for section in SECTIONS for name in section.names}

    def text(self) -> str:
        """All of it."""
        parts = [INTRODUCTION]
        for section in SECTIONS:
            parts.append(f"## {section.title}\n\n{section.text}\n")
            if section.title == _ERRORS:
                parts.append(self._errors(section))
            else:
                for name, members in section.names.items():
                    found = self._find(section.package, name)
                    parts += self._entry(name, found, members)
        return "\n".join(part.rstrip() + "\n" for part in parts)

    def _find(self, package: str, name: str) -> Any:
        path = BOUND.get(name) or f"{package}.{name}"
        found = self._loaded[path.removeprefix("synrepl.")]
        return found.final_target if found.is_alias else found

    # -- entries ----------------------------------------------------------------------------

    def _entry(self, name: str, found: Any, members: Sequence[str] | None) -> Iterator[str]:
        yield f"### `{name}`\n"
        if found.is_class:
            bases = [str(base) for base in found.bases]
            known = [self._link(base) for base in bases if base in self._listed]
            if _shows_signature(found):
                yield f"```python\n{_signature(found, name)}\n```\n"
            if known:
                yield f"Inherits from {', '.join(known)}.\n"
        elif found.is_function:
            yield f"```python\n{_signature(found, name)}\n```\n"
        yield from self._docstring(found)
        if found.is_class:
            yield from self._members(name, found, members)

    def _members(self, name: str, found: Any, members: Sequence[str] | None) -> Iterator[str]:
        described = {
            each.name
            for section in _sections(found)
            if section.kind is griffe.DocstringSectionKind.attributes
            for each in section.value
        }
        for member_name, member in found.members.items():
            if member_name.startswith("_") or member_name in described or member.is_alias:
                continue
            if members is not None and member_name not in members:
                continue
            if member.is_function:
                yield f"#### `{name}.{member_name}`\n"
                yield f"```python\n{_signature(member, member_name)}\n```\n"
                yield from self._docstring(member)
            elif member.docstring or _comment(member) or "dataclass" not in found.labels:
                value = f" = {member.value}" if member.value and not member.annotation else ""
                annotation = f": {member.annotation}" if member.annotation else ""
                yield f"#### `{name}.{member_name}{annotation}{value}`\n"
                yield from self._docstring(member)

    def _errors(self, section: Section) -> str:
        lines = ["| error | is a | text |", "|---|---|---|"]
        for name in section.names:
            found = self._find(section.package, name)
            bases = [each.name for each in found.mro() if each.name in self._listed]
            kind = f"`{bases[0]}`" if bases else ""
            text = " ".join(str(found.docstring.value).split()).replace("|", "\\|")
            properties = [
                f"`.{member_name}`: {self._inline(member.docstring.value)}"
                for member_name, member in found.members.items()
                if "property" in member.labels
            ]
            lines.append(f"| `{name}` | {kind} | {'<br>'.join([_verbatim(text), *properties])} |")
        return "\n".join(lines) + "\n"

    # -- docstrings -------------------------------------------------------------------------

    def _docstring(self, found: Any) -> Iterator[str]:
        if found.docstring is None:
            comment = _comment(found)
            if comment:
                yield self._blocks(comment) + "\n"
            return
        kinds = griffe.DocstringSectionKind
        for section in _sections(found):
            if section.kind is kinds.text:
                yield self._blocks(section.value) + "\n"
            elif section.kind in (kinds.parameters, kinds.attributes):
                yield self._list((f"`{each.name}`", each.description) for each in section.value)
            elif section.kind is kinds.returns:
                yield self._list(("Returns", each.description) for each in section.value)
            elif section.kind is kinds.raises:
                yield self._list(
                    (f"Raises {self._link(str(each.annotation))}", each.description)
                    for each in section.value
                )

    def _list(self, items: Iterable[tuple[str, str]]) -> str:
        lines = []
        for head, text in items:
            inline = self._inline(text)
            lines.append(f"- {head}: {inline}" if inline else f"- {head}")
        return "\n".join(lines) + "\n"

    def _blocks(self, text: str) -> str:
        """Paragraphs and examples."""
        return "\n\n".join(
            f"```pycon\n{block}\n```" if block.lstrip().startswith(">>>") else self._inline(block)
            for block in re.split(r"\n\s*\n", text.strip())
        )

    def _inline(self, text: str) -> str:
        """reStructuredText within a paragraph, as Markdown."""
        text = " ".join(text.split())
        text = re.sub(r"``([^`]+)``", r"`\1`", text)
        return _ROLE.sub(lambda match: self._reference(match[1]), text)

    def _reference(self, target: str) -> str:
        shown = target.rpartition(".")[2] if target.startswith("~") else target.lstrip(".")
        if shown.count(".") > 1:
            shown = ".".join(shown.split(".")[-2:])
        return self._link(shown)

    def _link(self, shown: str) -> str:
        name = shown.partition(".")[0]
        is_error = name in next(each for each in SECTIONS if each.title == _ERRORS).names
        if name not in self._listed:
            return f"`{shown}`"
        return f"[`{shown}`](#{_ERRORS.lower() if is_error else name.lower()})"


def _sections(found: Any) -> list[Any]:
    return [] if found.docstring is None else list(found.docstring.parsed)


def _shows_signature(found: Any) -> bool:
    """Whether its constructor, or what it consists of, is of interest."""
    return "dataclass" in found.labels or found.name in _MADE_BY_USERS


def _signature(found: Any, name: str) -> str:
    text = str(found.signature(name=name) if not found.is_class else found.signature())
    text = text.replace("TIMEOUT_S", "30.0").replace("BATCH_ROWS", "5_000")
    prefix = "async def " if "async" in found.labels else "" if found.is_class else "def "
    if found.is_class:
        text = text.removesuffix(" -> None")
    line = prefix + text
    if len(line) <= WIDTH:
        return line
    head, _, rest = line.partition("(")
    inner, _, tail = rest.rpartition(")")
    return f"{head}(\n" + "".join(f"    {each},\n" for each in _split(inner)) + f"){tail}"


def _split(parameters: str) -> list[str]:
    """Cut at the commas that are not in brackets."""
    depth, found = 0, [""]
    for character in parameters:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [each.strip() for each in found]


def _comment(found: Any) -> str:
    """The ``#:`` lines above an attribute."""
    if not found.is_attribute or found.lineno is None:
        return ""
    lines = found.filepath.read_text(encoding="utf-8").splitlines()[: found.lineno - 1]
    taken: list[str] = []
    while lines and lines[-1].strip().startswith("#:"):
        taken.insert(0, lines.pop().strip().removeprefix("#:").strip())
    return " ".join(taken)


def _verbatim(text: str) -> str:
    return text.replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main())

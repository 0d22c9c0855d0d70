"""Documents name files that exist: paths, links, and the decisions that refer to one another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from unittest import TestCase

from tests.test_house import REPOSITORY, source_files

#: Code in a line of Markdown.
CODE = re.compile(r"`([^`\n]+)`")

#: A path, perhaps a pattern, perhaps of a folder.
PATH = re.compile(r"[\w.*@-]+(?:/[\w.*@-]+)*/?")

#: A link to a file of the tree.
LINK = re.compile(r"\]\(([^)#:\s]*)(#[^)\s]*)?\)")

#: Files that are always named with their ending, wherever they are.
SOURCE = (".py", ".sql")

#: Made by a program, and not kept in the tree.
MADE = {"tests/fuzz/findings"}

#: Classes, functions, methods and annotated fields.
DEFINITION = re.compile(r"^\s*(?:(?:class|def|async def) (\w+)|(\w+): )", re.MULTILINE)

#: ``Status: accepted; amends 1; amended by 3 and 4.``
STATUS = re.compile(
    r"^Status: (?:accepted|superseded by \d+)"
    r"(?:; amends ([\d, and]+))?(?:; amended by ([\d, and]+))?\.$",
    re.MULTILINE,
)


def documents() -> list[Path]:
    """Every Markdown file of the tree, except the change log and its fragments."""
    fragments = REPOSITORY / "newsfragments"
    return [
        path
        for path in source_files()
        if path.suffix == ".md" and path.name != "CHANGES.md" and path.parent != fragments
    ]


def tree() -> set[str]:
    """Every file and folder of the repository, relative to it."""
    files = [path.relative_to(REPOSITORY) for path in source_files()]
    folders = {parent for path in files for parent in path.parents}
    return {path.as_posix() for path in (*files, *folders)} - {"."}


def named_paths(text: str, first: Iterable[str]) -> Iterator[str]:
    """The paths of the tree that a document names in code.

    :param first: folders with which a path begins that has no ending of a source file
    """
    for code in CODE.findall(text):
        path = code.rstrip("/")
        if PATH.fullmatch(code) is None or path in MADE:
            continue
        if code.endswith(SOURCE) or ("/" in code and code.split("/")[0] in first):
            yield path


def exists(path: str, known: Iterable[str]) -> bool:
    """Whether a file or folder has this path, counted from any folder."""
    if "*" in path:
        return any(fnmatchcase("/" + each, "*/" + path) for each in known)
    return any(("/" + each).endswith("/" + path) for each in known)


def missing_paths(text: str, known: set[str]) -> list[str]:
    """The paths that a document names and the tree does not have."""
    below = {each.removeprefix("synrepl/").split("/")[0] for each in known if "/" in each}
    first = below | {each.split("/")[0] for each in known if "/" in each}
    return [path for path in named_paths(text, first) if not exists(path, known)]


def anchors(text: str) -> set[str]:
    """What a link can lead to within a document, as GitHub makes it from the headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings]
    return {f"#{each}" for each in plain} | {
        f"#{each}" for each in re.findall(r'<a id="(.*?)"', text)
    }


def numbers(text: str | None) -> set[int]:
    """The numbers in a list such as ``7, 8 and 17``."""
    return {int(each) for each in re.findall(r"\d+", text or "")}


class DocumentPathsTest(TestCase):
    """Every document of the tree."""

    def test_names_only_files_that_exist(self) -> None:
        known = tree()
        found = {}
        for path in documents():
            if missing := missing_paths(path.read_text(encoding="utf-8"), known):
                found[path.relative_to(REPOSITORY).as_posix()] = missing
        self.assertEqual(found, {})

    def test_links_lead_to_files_and_headings_that_exist(self) -> None:
        broken = []
        for path in documents():
            for target, anchor in LINK.findall(path.read_text(encoding="utf-8")):
                to = (path.parent / target) if target else path
                if not to.exists():
                    broken.append(f"{path.name}: {target}")
                elif anchor and anchor not in anchors(to.read_text(encoding="utf-8")):
                    broken.append(f"{path.name}: {target}{anchor}")
        self.assertEqual(broken, [])

    def test_the_architecture_names_only_classes_and_members_that_exist(self) -> None:
        defined = set()
        for folder in ("synrepl", "simulator"):
            for path in (REPOSITORY / folder).rglob("*.py"):
                source = path.read_text(encoding="utf-8")
                defined |= {"".join(names) for names in DEFINITION.findall(source)}
        text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
        named = [
            code for code in CODE.findall(text) if re.fullmatch(r"[A-Z][a-z]\w*(\.\w+)*", code)
        ]
        self.assertEqual([code for code in named if not set(code.split(".")) <= defined], [])

    def test_finds_a_path_that_does_not_exist(self) -> None:
        known = {"synrepl/wire/codec.py", "synrepl/wire", "docs/tap.md", "docs", "synrepl"}
        text = "`wire/codec.py`, `codec.py`, `wire/`, `wire/*.py`, `docs/tap.md`, `a/b`, `x y.py`"
        self.assertEqual(missing_paths(text, known), [])
        for path in ("wire/codecs.py", "odec.py", "wire/lines/", "docs/nap.md", "tests/*.py"):
            self.assertEqual(missing_paths(f"see `{path}`", known), [path.rstrip("/")], path)


class DecisionRecordsTest(TestCase):
    """``docs/adr``."""

    def records(self) -> dict[int, str]:
        """Each record by its number."""
        paths = sorted((REPOSITORY / "docs" / "adr").glob("*.md"))
        return {int(path.name[:4]): path.read_text(encoding="utf-8") for path in paths}

    def test_are_numbered_without_gaps_and_titled_with_their_number(self) -> None:
        records = self.records()
        self.assertEqual(list(records), list(range(1, len(records) + 1)))
        for number, text in records.items():
            self.assertTrue(text.startswith(f"# {number}. "), text[:40])

    def test_have_a_status_and_name_each_other(self) -> None:
        amends: dict[int, set[int]] = {}
        amended: dict[int, set[int]] = {}
        for number, text in self.records().items():
            found = STATUS.findall(text)
            self.assertEqual(len(found), 1, f"ADR {number} has no well-formed status")
            amends[number], amended[number] = map(numbers, found[0])
        for number in amends:
            reverse = {other for other, targets in amends.items() if number in targets}
            self.assertEqual(amended[number], reverse, f"ADR {number} is amended by others")

    def test_refer_to_records_that_exist(self) -> None:
        records = self.records()
        for path in documents():
            text = path.read_text(encoding="utf-8")
            for cited in re.findall(r"\bADRs? (\d+)|\bsee (00\d\d)\b", text):
                self.assertIn(int("".join(cited)), records, path.name)

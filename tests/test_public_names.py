"""Documents, templates and messages name only what applications may import."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest import TestCase

from zope.interface.verify import verifyClass

from synrepl.core.errors import SynreplError
from synrepl.services.handler_interfaces import IHandler, ITransactionalHandler
from tests.test_house import REPOSITORY, all_modules, subclasses

#: What may be imported from.
PUBLIC = ("synrepl", "synrepl.pipeline", "synrepl.rooms", "synrepl.testing")

#: An import of one of our modules.
IMPORT = re.compile(
    r"^\s*(?:>>> |\.\.\. )?(?:from (synrepl[\w.]*) import ([\w, ]+)|import (synrepl[\w.]*))",
    re.MULTILINE,
)

#: A module that is not public, named anywhere.
INTERNAL = re.compile(
    r"\bsynrepl\.(?:adapters|caches|client|core|daemon|driver|positions|services|storage|streams|wire)\.\w+"
)

#: Written for people who change the product.
FOR_CONTRIBUTORS = ("docs/architecture.md", "docs/adr/", "tests/", "newsfragments/", "CHANGES.md")

#: Top-level await is fine in an example.
_FLAGS = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def documents() -> Iterator[tuple[str, str]]:
    """Every Markdown file for users: its name and its text."""
    for folder in (".", "docs", "contrib", "docker"):
        paths = (REPOSITORY / folder).glob("*.md" if folder == "." else "**/*.md")
        for path in sorted(paths):
            name = path.relative_to(REPOSITORY).as_posix()
            if not name.startswith(FOR_CONTRIBUTORS):
                yield name, path.read_text(encoding="utf-8")


def python_blocks(text: str) -> list[str]:
    """The Python of a document."""
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def foreign_imports(text: str) -> list[str]:
    """What a text imports and may not, and names that do not exist."""
    found = []
    for module, names, plain in IMPORT.findall(text):
        where = module or plain
        if where not in PUBLIC:
            found.append(where)
            continue
        offered = importlib.import_module(where)
        found += [
            f"{where}.{name}"
            for name in re.findall(r"\w+", names)
            if name != "as" and not hasattr(offered, name)
        ]
    return found


class Documents(TestCase):
    """What a reader copies works, and goes on working."""

    def test_import_from_public_places_only(self) -> None:
        found = {name: foreign_imports(text) for name, text in documents()}
        self.assertEqual({name: each for name, each in found.items() if each}, {})
        self.assertGreater(sum(len(IMPORT.findall(text)) for _, text in documents()), 8)

    def test_name_no_internal_module(self) -> None:
        found = {name: INTERNAL.findall(text) for name, text in documents()}
        self.assertEqual({name: each for name, each in found.items() if each}, {})

    def test_their_python_is_python(self) -> None:
        blocks = [(name, block) for name, text in documents() for block in python_blocks(text)]
        self.assertGreater(len(blocks), 10)
        for name, block in blocks:
            if name == "docs/api.md":  # signatures, whose names are tested elsewhere
                continue
            with self.subTest(name, block=block):
                compile(textwrap.dedent(block), name, "exec", flags=_FLAGS)

    def test_the_handlers_of_the_readme_are_handlers(self) -> None:
        (block,) = (
            each for each in python_blocks((REPOSITORY / "README.md").read_text(encoding="utf-8"))
            if "class Totals" in each
        )  # fmt: skip
        names: dict[str, Any] = {}
        exec(compile(block, "README.md", "exec"), names)
        verifyClass(IHandler, names["Mailer"])
        verifyClass(ITransactionalHandler, names["Totals"])

    def test_the_check_finds_what_may_not_be_imported(self) -> None:
        for text in (
            "from synrepl.services.handlers import Handler",
            "    from synrepl.adapters.caches import cached",
            "import synrepl.storage.store",
            ">>> from synrepl.rooms.event import parse_event",
            "from synrepl import Handlr",
        ):
            self.assertEqual(len(foreign_imports(text)), 1, text)
        self.assertEqual(foreign_imports("from synrepl import Handler, Batch"), [])


class Messages(TestCase):
    """Texts of the product that a user reads."""

    #: What a text has, and a module's path alone does not.
    SPACES: ClassVar = re.compile(r"\s")

    def test_templates_name_no_internal_module(self) -> None:
        for path in sorted((REPOSITORY / "synrepl/cli/templates").iterdir()):
            with self.subTest(path.name):
                self.assertEqual(INTERNAL.findall(path.read_text(encoding="utf-8")), [])

    def test_messages_name_no_internal_module(self) -> None:
        all_modules()
        found = {str(cls): INTERNAL.findall(cls.template()) for cls in subclasses(SynreplError)}
        for path in sorted((REPOSITORY / "synrepl").rglob("*.py")):
            texts = filter(self.SPACES.search, _texts(path))
            found[str(path)] = [text[:80] for text in texts if INTERNAL.search(text)]
        self.assertEqual({name: each for name, each in found.items() if each}, {})


def _texts(path: Path) -> Iterator[str]:
    """The strings of a module that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    docstrings = {id(statement.value) for statement in statements}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in docstrings:
            yield str(node.value)  # type: ignore[attr-defined]

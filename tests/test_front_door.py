"""What ``synrepl`` and its facades offer, and what that costs."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from typing import ClassVar
from unittest import TestCase

import synrepl
from synrepl.client.client import Client
from synrepl.core import lazy

REPOSITORY = Path(__file__).resolve().parent.parent

#: What an application must not pay for unless it uses it.
HEAVY = ("twisted", "psycopg2", "pyspark", "httpx2", "httpx", "anyio", "msgspec", "zope", "click")


def loaded_after(statement: str) -> set[str]:
    """The packages in memory after a statement, in a Python of its own."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def facades() -> list[str]:
    """The packages whose names are imported lazily."""
    inits = sorted((REPOSITORY / "synrepl").rglob("__init__.py"))
    return [
        ".".join(path.relative_to(REPOSITORY).parent.parts)
        for path in inits
        if "lazy_names(" in path.read_text(encoding="utf-8")
    ]


class Facade:
    """A package with lazy names, as its source declares them.

    :ivar table: names by module, as given to ``lazy_names``
    :ivar typed: names by module, as imported for type checkers
    """

    def __init__(self, name: str) -> None:
        self.module = importlib.import_module(name)
        path = REPOSITORY.joinpath(*name.split("."), "__init__.py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.table: dict[str, set[str]] = {}
        self.typed: dict[str, set[str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module not in ("typing", lazy.__name__):
                assert node.module is not None
                self.typed.setdefault(node.module, set()).update(each.name for each in node.names)
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "lazy_names":
                places = ast.literal_eval(node.args[1])
                self.table = {module: set(names) for module, names in places.items()}


class Names(TestCase):
    """Each facade says the same to Python, to type checkers and to ``import *``."""

    def test_there_are_facades(self) -> None:
        self.assertTrue({"synrepl", "synrepl.pipeline"} <= set(facades()))

    def test_type_checkers_see_the_names_that_are_loaded(self) -> None:
        for name in facades():
            with self.subTest(name):
                facade = Facade(name)
                self.assertEqual(facade.table, facade.typed)
                names = sorted(each for names in facade.table.values() for each in names)
                declared = [each for each in facade.module.__all__ if each != "__version__"]
                self.assertEqual(sorted(declared), names)

    def test_each_name_can_be_imported_and_is_listed(self) -> None:
        for name in facades():
            module = importlib.import_module(name)
            for each in module.__all__:
                with self.subTest(f"{name}.{each}"):
                    self.assertIsNotNone(getattr(module, each))
                    self.assertIn(each, dir(module))

    def test_a_name_is_the_object_of_its_own_module(self) -> None:
        self.assertIs(synrepl.Client, Client)

    def test_a_name_that_does_not_exist(self) -> None:
        with self.assertRaisesRegex(AttributeError, "module 'synrepl' has no attribute 'Handlr'"):
            synrepl.Handlr  # type: ignore[attr-defined]  # noqa: B018
        with self.assertRaises(ImportError):
            from synrepl import Handlr  # type: ignore[attr-defined]  # noqa: F401

    def test_no_name_hides_a_package(self) -> None:
        for name in facades():
            module = importlib.import_module(name)
            folder = REPOSITORY.joinpath(*name.split("."))
            inside = {path.stem for path in folder.iterdir()}
            self.assertEqual(inside & set(module.__all__), set())


class Costs(TestCase):
    """What is not used is not loaded."""

    COSTS: ClassVar = (
        ("import synrepl", ()),
        ("import synrepl; dir(synrepl); synrepl.SynreplError", ()),
        ("from synrepl import Client", ("httpx2", "msgspec")),
        ("from synrepl import AsyncClient", ("httpx2", "msgspec", "anyio")),
        ("from synrepl import Handler, Batch, TransactionalHandler", ("msgspec", "zope")),
        ("import synrepl.pipeline", ()),
    )

    def test_each_import_loads_what_it_needs_and_no_more(self) -> None:
        for statement, allowed in self.COSTS:
            with self.subTest(statement):
                found = loaded_after(statement) & set(HEAVY)
                self.assertEqual(found - set(allowed), set())

"""The layers of docs/architecture.md, enforced on the source.

Every import counts: at the top, inside functions, under TYPE_CHECKING, ``import_module`` of a
literal, and a string that is the name of a module (``"synrepl.a.b"`` or ``"synrepl.a.b:Name"``).
A new package has to be declared here first. Inside a package, its modules and folders import one
another without cycles, a folder counting as one.

``synrepl`` itself is the front door: it may name anything, which it imports when it is used, and
nothing inside imports from it except a ``__dunder__``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, NamedTuple
from unittest import TestCase

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = "synrepl"

#: Top first; siblings on one line never import one another.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("daemon",),
    ("tools",),
    ("services", "adapters", "pipeline", "testing"),
    ("driver",),
    ("storage", "caches"),
    ("streams", "federation"),
    ("wire", "positions", "rooms", "client"),
    ("core",),
)

#: Who may import an external package.
ONLY = {
    "twisted": {"adapters", "cli", "daemon", "testing", "tools"},
    "txredisapi": {"adapters", "testing"},
    "pyspark": {"pipeline"},
    "psycopg2": {"adapters", "driver", "testing"},
    "httpx2": {"client"},
    "anyio": {"adapters", "client"},
}

#: Packages whose modules others do not import, only the package itself; their tests may look inside.
FACADES = {"synrepl.rooms": "tests/rooms"}

#: Source beside the product's, which keeps to the facades, too.
BESIDE = (
    *("benchmarks", "interop", "simulator", "contrib"),
    *("tests", "system_tests", "cluster_tests"),
)

#: What the product never imports.
NEVER = {"tests", "system_tests", "cluster_tests", "benchmarks", "simulator"}

#: A string that names a module, or something in one.
MODULE_NAME = re.compile(rf"({PACKAGE}(?:\.\w+)+)(?::\w+)?")

RANK = {name: rank for rank, line in enumerate(LAYERS) for name in line}


class Import(NamedTuple):
    """One import: by which module, of what (a dotted name), where.

    :ivar is_name: it is a string with the module's name, so it is loaded when it is needed, and
        makes no cycle
    """

    importer: str
    imported: str
    line: int
    is_name: bool = False


def modules(root: Path) -> dict[str, Path]:
    """Dotted name -> file of every module of the package below ``root``."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(root: Path) -> list[Import]:
    """Every import of every module, of modules rather than of names in them."""
    known = modules(root)
    found = []
    for importer, path in known.items():
        package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for target in _targets(node, package, known):
                found.append(Import(importer, target, getattr(node, "lineno", 0)))
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = MODULE_NAME.fullmatch(node.value)
                if named is not None and named[1] in known:
                    found.append(Import(importer, named[1], node.lineno, is_name=True))
    return found


def _targets(node: ast.AST, package: str, known: dict[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, base] if base else above)
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            through_front_door = base == PACKAGE and not alias.name.startswith("__")
            yield inner if inner in known or through_front_door else base
    elif isinstance(node, ast.Call) and node.args:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else None
        name = node.func.id if isinstance(node.func, ast.Name) else name
        first = node.args[0]
        if (
            name in ("import_module", "__import__")
            and isinstance(first, ast.Constant)
            and isinstance(first.value, str)
        ):
            yield first.value


def layer(module: str) -> str:
    """The package (or top-level module) right below ``synrepl`` that a module belongs to."""
    return module.split(".")[1] if "." in module else ""


def breaches(root: Path) -> list[str]:
    """Everything below ``root`` that breaks the rules, one sentence each."""
    found = [
        f"{name}: layer {layer(name)!r} is not declared"
        for name in modules(root)
        if layer(name) not in RANK and name != PACKAGE
    ]
    all_imports = imports(root)
    for one in all_imports:
        found.extend(f"{one.importer}:{one.line} {reason}" for reason in _reasons(one))
    graph = module_graph(root, all_imports)
    found.extend(f"import cycle: {' -> '.join(cycle)}" for cycle in cycles(graph))
    packages = {name for name, path in modules(root).items() if path.stem == "__init__"}
    for package in sorted(packages - {PACKAGE}):  # in which the layers are the order
        for cycle in cycles(children_graph(package, graph)):
            if any(f"{package}.{child}" in packages for child in cycle):  # else it is known already
                found.append(f"import cycle inside {package}: {' -> '.join(cycle)}")
    return list(dict.fromkeys(found))


def _reasons(one: Import) -> Iterator[str]:
    here, top = layer(one.importer), one.imported.split(".")[0]
    if top in NEVER:
        yield f"imports {one.imported}"
    if here not in ONLY.get(top, {here}):
        yield f"imports {top}, which only {', '.join(sorted(ONLY[top]))} may"
    if top != PACKAGE:
        return
    yield from _insides(one.importer, one.imported)
    there = layer(one.imported)
    if one.importer == PACKAGE:
        return
    if there and there not in RANK and one.imported.count(".") == 1:
        yield f"imports {there} from the front door; import it from its own module"
    elif there and there != here and here in RANK and there in RANK:
        if RANK[there] == RANK[here]:
            yield f"imports its sibling {one.imported}"
        elif RANK[there] < RANK[here]:
            yield f"imports the higher {one.imported}"


def _insides(importer: str, imported: str) -> Iterator[str]:
    """Whether an import goes past a facade."""
    for facade in FACADES:
        if imported.startswith(facade + ".") and not f"{importer}.".startswith(facade + "."):
            yield f"imports {imported}: import from {facade}, which has all that is meant for others"


def beside(root: Path) -> list[str]:
    """Imports past a facade in what stands beside the package, and of system tests in tests, one sentence each."""
    known, found = modules(root), []
    for folder in BESIDE:
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if any(name.startswith(f"{inside}/") for inside in FACADES.values()):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                imported = str(node.module) if isinstance(node, ast.ImportFrom) else ""
                if folder == "tests" and imported.startswith(("system_tests", "cluster_tests")):
                    found.append(f"{name}:{getattr(node, 'lineno', 0)} imports {imported}")
                for target in _targets(node, "", known):
                    reasons = _insides(name, target)
                    found.extend(f"{name}:{getattr(node, 'lineno', 0)} {each}" for each in reasons)
    return found


def module_graph(root: Path, all_imports: list[Import]) -> dict[str, set[str]]:
    """Module -> the modules that it imports."""
    graph: dict[str, set[str]] = {name: set() for name in modules(root)}
    for one in all_imports:
        if one.imported in graph and one.importer != PACKAGE and not one.is_name:
            graph[one.importer].add(one.imported)
    return graph


def children_graph(package: str, graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """What the modules and folders right inside a package import of one another."""
    within = f"{package}."
    found: dict[str, set[str]] = {}
    for importer, imported in graph.items():
        if importer.startswith(within):
            child = importer.removeprefix(within).partition(".")[0]
            others = {
                name.removeprefix(within).partition(".")[0]
                for name in imported
                if name.startswith(within)
            }
            found.setdefault(child, set()).update(others - {child})
    for name in set().union(*found.values()) - set(found):
        found[name] = set()
    return found


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that lead to one another, directly or in a circle (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1 or name in graph[name]:
                found.append(group)

    for name in graph:
        if name not in index:
            visit(name)
    return found


class TheTree(TestCase):
    """The real source."""

    def test_no_module_imports_past_its_layer(self) -> None:
        self.assertEqual(breaches(REPOSITORY), [])

    def test_nothing_beside_the_package_goes_past_a_facade(self) -> None:
        self.assertEqual(beside(REPOSITORY), [])

    def test_something_was_looked_at(self) -> None:
        self.assertGreater(len(imports(REPOSITORY)), 20)


class TheChecker(TestCase):
    """A small tree with one breach of each kind: each is found, and nothing else."""

    CLEAN: ClassVar = {
        "synrepl/__init__.py": "",
        "synrepl/__main__.py": "from synrepl.daemon.main import run\n",
        "synrepl/core/__init__.py": "",
        "synrepl/core/a.py": "import os\n",
        "synrepl/wire/__init__.py": "",
        "synrepl/wire/w.py": "from synrepl.core import a\nfrom . import v\n",
        "synrepl/wire/v.py": "from synrepl.core.a import thing\n",
        "synrepl/positions/__init__.py": "",
        "synrepl/positions/p.py": "from ..core.a import thing\n",
        "synrepl/adapters/__init__.py": "",
        "synrepl/adapters/t.py": "import twisted.internet, psycopg2\nimport synrepl\n",
        "synrepl/daemon/__init__.py": "",
        "synrepl/daemon/main.py": "from synrepl.adapters.t import x\nfrom synrepl.wire.w import y\n",
    }

    def check(self, extra: Mapping[str, str] | None = None) -> list[str]:
        with TemporaryDirectory() as directory:
            root = Path(directory)
            for name, text in {**self.CLEAN, **(extra or {})}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return breaches(root)

    def assert_only(self, found: list[str], part: str) -> None:
        self.assertEqual(len(found), 1, found)
        self.assertIn(part, found[0])

    def test_a_clean_tree(self) -> None:
        self.assertEqual(self.check(), [])

    def test_every_way_to_import_upwards(self) -> None:
        for text in (
            "import synrepl.wire.v",
            "from synrepl.wire import v",
            "from synrepl.wire.v import x",
            "from synrepl import wire",
            "from ..wire import v",
            "from .. import wire",
            "def f():\n    from synrepl.wire import v",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import synrepl.wire.v",
            "import importlib\nimportlib.import_module('synrepl.wire.v')",
            "__import__('synrepl.wire.v')",
            "PLACES = {'it': 'synrepl.wire.v'}",
            "PLACES = ('synrepl.wire.v:Thing',)",
        ):
            with self.subTest(text):
                found = self.check({"synrepl/core/b.py": text})
                self.assert_only(found, "imports the higher synrepl.wire")

    def test_folders_that_import_one_another(self) -> None:
        found = self.check(
            {
                "synrepl/wire/one/__init__.py": "",
                "synrepl/wire/one/a.py": "from synrepl.wire.two import b\n",
                "synrepl/wire/one/c.py": "",
                "synrepl/wire/two/__init__.py": "",
                "synrepl/wire/two/b.py": "from synrepl.wire.one import c\n",
            }
        )
        self.assert_only(found, "import cycle inside synrepl.wire: one -> two")

    def test_refuses_an_import_of_a_sibling_layer(self) -> None:
        found = self.check({"synrepl/wire/x.py": "from synrepl.positions import p"})
        self.assert_only(found, "imports its sibling synrepl.positions.p")

    def test_the_inside_of_a_facade(self) -> None:
        inside = {"synrepl/rooms/__init__.py": "from synrepl.rooms.room import Room\n"}
        inside["synrepl/rooms/room.py"] = "from synrepl.rooms.state import x\n"
        inside["synrepl/rooms/state.py"] = ""
        through = "from synrepl.rooms import Room\nimport synrepl.rooms\n"
        self.assertEqual(self.check({**inside, "synrepl/adapters/u.py": through}), [])
        for text in ("import synrepl.rooms.room", "from synrepl.rooms import room"):
            found = self.check({**inside, "synrepl/adapters/u.py": text})
            self.assert_only(found, "imports synrepl.rooms.room: import from synrepl.rooms")

    def test_packages_beside_the_product_import_only_facades(self) -> None:
        with TemporaryDirectory() as directory:
            root = Path(directory)
            for name, text in {
                "synrepl/rooms/room.py": "",
                "tests/rooms/t.py": "from synrepl.rooms.room import Room",
                "tests/other/t.py": "from synrepl.rooms import Room",
                "benchmarks/b.py": "from synrepl.rooms.room import Room",
            }.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            self.assert_only(beside(root), "benchmarks/b.py:1 imports synrepl.rooms.room")

    def test_refuses_libraries_outside_their_layer(self) -> None:
        for text, name in (
            ("from twisted.python import failure", "twisted"),
            ("import pyspark.sql", "pyspark"),
            ("def f():\n    import psycopg2", "psycopg2"),
        ):
            with self.subTest(name):
                found = self.check({"synrepl/wire/x.py": text})
                self.assert_only(found, f"imports {name}, which only")

    def test_refuses_a_layer_that_is_not_declared(self) -> None:
        for name in ("synrepl/helpers/x.py", "synrepl/helpers.py"):
            with self.subTest(name):
                self.assert_only(self.check({name: ""}), "layer 'helpers' is not declared")

    def test_tests_are_not_imported(self) -> None:
        found = self.check({"synrepl/core/b.py": "from tests.core import x"})
        self.assert_only(found, "imports tests.core")

    def test_the_front_door_may_name_anything(self) -> None:
        self.assertEqual(self.check({"synrepl/__init__.py": "from synrepl.core.a import b"}), [])
        self.assertEqual(self.check({"synrepl/core/b.py": "from synrepl import __version__"}), [])

    def test_nothing_inside_imports_from_the_front_door(self) -> None:
        for text in ("from synrepl import Thing", "from .. import Thing"):
            with self.subTest(text):
                found = self.check({"synrepl/core/b.py": text})
                self.assert_only(found, "imports Thing from the front door")

    def test_finds_import_cycles(self) -> None:
        found = self.check(
            {
                "synrepl/core/a.py": "def f():\n    from synrepl.core import b",
                "synrepl/core/b.py": "from synrepl.core.c import x",
                "synrepl/core/c.py": "from .a import thing",
            }
        )
        self.assert_only(found, "import cycle: synrepl.core.a -> synrepl.core.b -> synrepl.core.c")

"""Rules of the house that no single module can keep alone."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from string import Formatter
from typing import NamedTuple
from unittest import TestCase

import synrepl
from synrepl.core.errors import SynreplError

REPOSITORY = Path(__file__).resolve().parent.parent
LONGEST_MODULE = 450

#: Directories with code that is shipped, and with code that uses it.
PRODUCT = "synrepl"
USERS = ("tests", "system_tests", "cluster_tests", "benchmarks", "interop", "simulator")

#: Files that may use private members of other modules, by path, with the reason.
MAY_USE_PRIVATE_MEMBERS = {
    r"tests/(\w+/\w*mutants|mutants/\w+)\.py": "mutation: it breaks private parts on purpose",
}

#: Private by their look only: the standard library documents them for named tuples.
NAMED_TUPLE_MEMBERS = {"_replace", "_asdict", "_fields", "_make"}

#: Functions that take the name of a member as a string.
TAKE_A_NAME = {"patch", "object", "getattr", "setattr", "delattr", "hasattr"}

#: Made by tools and ignored by git.
NOT_SOURCE = re.compile(
    r"\.git|\.venv.*|venv|build|dist|.*\.egg-info|__pycache__|_trial_temp.*|\.hypothesis"
    r"|\.(mypy|ruff|pytest)_cache|\.tox|.*\.(pyc|cache|lock)"
)

#: Assembled from parts, so that this file does not contain what it looks for.
FORBIDDEN = re.compile(
    "|".join(
        [
            r"\bpy" + r"pi\.",
            "python" + "hosted",
            "npm" + r"js\.",
            "crates" + r"\.io",
            "repo1?" + r"\.maven",
            r"proxy\.go" + "lang",
            r"(?<![\w.}/-])/wo" + r"rk\b",
            r"(?<![\w.}/-])/tm" + r"p\b",
            r"(?<![\w.}/-])/ro" + r"ot\b",
            r"(?<![\w.}/-])/ho" + r"me/\w",
        ]
    )
)


def source_files(directory: Path = REPOSITORY) -> Iterator[Path]:
    """Every file of the tree that somebody wrote."""
    for path in sorted(directory.iterdir()):
        if NOT_SOURCE.fullmatch(path.name):
            continue
        if path.is_dir():
            yield from source_files(path)
        else:
            yield path


def all_modules() -> list[str]:
    """Every module of the package, imported."""
    found = [info.name for info in pkgutil.walk_packages(synrepl.__path__, "synrepl.")]
    for name in found:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    return found


def subclasses(cls: type[SynreplError]) -> Iterator[type[SynreplError]]:
    """All subclasses of the product (tests may define their own), at any depth."""
    for each in cls.__subclasses__():
        if each.__module__.startswith("synrepl."):
            yield each
        yield from subclasses(each)


class Errors(TestCase):
    """An error's docstring is what a person reads."""

    def test_every_error_has_a_message_of_its_own(self) -> None:
        all_modules()
        classes = list(subclasses(SynreplError))
        self.assertGreater(len(classes), 10)
        self.assertEqual([c.__name__ for c in classes if not (c.__doc__ or "").strip()], [])

    def test_placeholders_are_plain_names(self) -> None:
        all_modules()
        for cls in subclasses(SynreplError):
            with self.subTest(cls.__qualname__):
                fields = [name for _, name, _, _ in Formatter().parse(cls.template())]
                for field in filter(lambda name: name is not None, fields):
                    self.assertRegex(str(field), r"^[a-z_]+(\.[a-z_]+)*$")

    def test_messages_can_be_made(self) -> None:
        all_modules()
        for cls in subclasses(SynreplError):
            with self.subTest(cls.__qualname__):
                facts = {name: _Anything() for name in cls.placeholders()}
                self.assertNotIn("{", str(cls(**facts)))


class _Anything:
    """Formats in every way and has every attribute."""

    def __format__(self, spec: str) -> str:
        return "x"

    def __getattr__(self, name: str) -> _Anything:
        return self


class Source(TestCase):
    """Sizes, and words that do not belong into a published tree."""

    def test_no_module_is_too_long(self) -> None:
        paths = [path for path in source_files(REPOSITORY / "synrepl") if path.suffix == ".py"]
        lines = {str(path): path.read_text(encoding="utf-8").count("\n") for path in paths}
        self.assertEqual({n: count for n, count in lines.items() if count > LONGEST_MODULE}, {})

    def test_nothing_about_where_it_was_made(self) -> None:
        found = []
        for path in source_files():
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            for number, line in enumerate(text.splitlines(), 1):
                if FORBIDDEN.search(line):
                    found.append(f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()[:80]}")
        self.assertEqual(found, [])

    def test_the_search_finds_something(self) -> None:
        for text in ("see /" + "tmp/x", "https://py" + "pi.org/simple", "cd /" + "work/main"):
            self.assertTrue(FORBIDDEN.search(text), text)
        for text in ("PrivateTmp=true", "./work", "a/work", "https://x.org/work"):
            self.assertFalse(FORBIDDEN.search(text), text)


class ModuleNames(NamedTuple):
    """Names in one module.

    :ivar classes: the classes that it defines
    :ivar private: the private names that it defines: functions, classes, variables, attributes
    :ivar uses: private names that it reads, patches or imports, with their lines, but not those
        that it defines, or that its classes inherit
    """

    classes: list[str]
    private: set[str]
    uses: list[tuple[int, str]]


def is_private(name: str) -> bool:
    """Whether a name begins with one underscore."""
    return re.match(r"_[^\W_]", name) is not None and name not in NAMED_TUPLE_MEMBERS


def names_in(source: str) -> ModuleNames:
    """The names in a module's source."""
    names = ModuleNames([], set(), [])
    uses: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            if not _of_own_class(node):
                uses.append((node.lineno, node.attr))
            elif isinstance(node.ctx, ast.Store):
                names.private.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.private.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.private.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names.private.add(node.name)
            names.classes.append(node.name)
        elif isinstance(node, ast.ImportFrom):
            uses += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.Call):
            uses += [(node.lineno, name) for name in _names_of_members(node)]
    names.uses.extend(
        (n, name) for n, name in uses if is_private(name) and name not in names.private
    )
    return names._replace(private=set(filter(is_private, names.private)))


def _of_own_class(node: ast.Attribute) -> bool:
    """Whether an attribute belongs to the class that uses it, or to one that it inherits from."""
    owner = node.value
    if isinstance(owner, ast.Call):
        return isinstance(owner.func, ast.Name) and owner.func.id == "super"
    return isinstance(owner, ast.Name) and owner.id in ("self", "cls")


def _names_of_members(call: ast.Call) -> Iterator[str]:
    """The names of members that a call is given as strings."""
    called = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
    for argument in call.args if called in TAKE_A_NAME else ():
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            yield argument.value.rpartition(".")[2]


@cache
def names_by_path(directory: str) -> Mapping[str, ModuleNames]:
    """The names in the modules of a directory of the repository, by path."""
    return {
        path.relative_to(REPOSITORY).as_posix(): names_in(path.read_text(encoding="utf-8"))
        for path in sorted((REPOSITORY / directory).rglob("*.py"))
    }


class PrivateMembers(TestCase):
    """Tests and other users of the product see it as its users do."""

    def test_only_mutation_uses_private_members_of_other_modules(self) -> None:
        known: set[str] = set()
        for directory in (PRODUCT, *USERS):
            known.update(*(names.private for names in names_by_path(directory).values()))
        found = [
            f"{path}:{line}: {name}"
            for directory in USERS
            for path, names in names_by_path(directory).items()
            if not any(re.fullmatch(pattern, path) for pattern in MAY_USE_PRIVATE_MEMBERS)
            for line, name in names.uses
            if name in known
        ]
        self.assertEqual(found, [])

    def test_every_exception_is_needed(self) -> None:
        for pattern in MAY_USE_PRIVATE_MEMBERS:
            matching = [
                names.uses
                for directory in USERS
                for path, names in names_by_path(directory).items()
                if re.fullmatch(pattern, path)
            ]
            self.assertTrue(any(matching), pattern)

    def test_finds_every_kind_of_use(self) -> None:
        for source in (
            "thing._x",
            "self.thing._x = 1",
            "from synrepl.module import _x",
            "self.patch(thing, '_x', 1)",
            "patch('synrepl.module._x', 1)",
            "patch.object(thing, '_x')",
            "getattr(thing, '_x')",
        ):
            self.assertEqual(names_in(source).uses, [(1, "_x")], source)
        for source in ("self._x", "super()._x()", "thing.__x__", "self._x = 1; other._x", "'_x'"):
            self.assertEqual(names_in(source).uses, [], source)


class ClassNames(TestCase):
    """A class can be found by its name."""

    def test_are_unique_in_the_product_and_its_simulator(self) -> None:
        places: defaultdict[str, list[str]] = defaultdict(list)
        for directory in (PRODUCT, "simulator"):
            for path, names in names_by_path(directory).items():
                for name in names.classes:
                    places[name].append(path)
        self.assertEqual({name: where for name, where in places.items() if len(where) > 1}, {})


class Commands(TestCase):
    """What the README promises is what CI runs."""

    def readme_commands(self) -> list[str]:
        text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
        return [
            line
            for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
            for line in block.splitlines()
            if line.startswith("python3 -m venv")
        ]

    def test_two_commands_one_line_each(self) -> None:
        demo, tests = self.readme_commands()
        self.assertTrue(demo.endswith("synrepl demo"), demo)
        self.assertTrue(tests.endswith("twisted.trial -j3 tests"), tests)

    def test_ci_runs_the_readme_command(self) -> None:
        script = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
        self.assertIn(f"\n    {self.readme_commands()[1]}\n", script)

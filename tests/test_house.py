"""Rules of the house that no single module can keep alone."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from unittest import TestCase

import synrepl
from synrepl.core.errors import SynreplError

REPOSITORY = Path(__file__).resolve().parent.parent
LONGEST_MODULE = 450

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
        self.assertTrue(tests.endswith("twisted.trial -j2 tests"), tests)

    def test_ci_runs_the_readme_command(self) -> None:
        script = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
        self.assertIn(f"\n    {self.readme_commands()[1]}\n", script)

"""What is imported is required."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from importlib.metadata import packages_distributions
from pathlib import Path
from unittest import TestCase

from tests.test_house import REPOSITORY

#: By imported package. Ours has a folder of Twisted's plugins, and is no requirement of itself.
_DISTRIBUTIONS = {
    package: [each for each in names if each != "synrepl"]
    for package, names in packages_distributions().items()
}

#: What an extra of a required package brings.
_OF_EXTRAS = {"pyopenssl": "twisted[tls]"}


def imported(path: Path) -> Iterator[str]:
    """The packages that a file imports, by their distributions' names; not the standard library."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        for name in {name.partition(".")[0] for name in names} - {"synrepl"}:
            if name not in sys.stdlib_module_names:
                yield _normal(_DISTRIBUTIONS.get(name, [name])[0])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class Requirements(TestCase):
    """``setup.cfg``."""

    def setUp(self) -> None:
        config = ConfigParser()
        config.read(REPOSITORY / "setup.cfg")
        self.extras = config["options.extras_require"]
        wanted = config["options"]["install_requires"].split()
        names = [_normal(re.split(r"[<>=!~;]", each)[0]) for each in wanted]
        self.required = {*names, *(name.partition("[")[0] for name in names)}

    def test_all_but_the_pipeline_runs_without_an_extra(self) -> None:
        missing = {
            f"{path.relative_to(REPOSITORY)}: {name}"
            for path in (REPOSITORY / "synrepl").rglob("*.py")
            if "pipeline" not in path.parts
            for name in imported(path)
            if _OF_EXTRAS.get(name, name) not in self.required
        }
        self.assertEqual(missing, set())

    def test_the_extra_for_redis_is_accepted_and_brings_nothing(self) -> None:
        self.assertEqual(self.extras["redis"], "")

"""The change log and the fragments from which towncrier builds it."""

from __future__ import annotations

import re
import tomllib
from unittest import TestCase

import synrepl
from tests.test_house import REPOSITORY


class ChangeLogTest(TestCase):
    """``CHANGES.md`` and ``newsfragments``."""

    def test_has_a_section_for_the_version_of_the_package(self) -> None:
        version = re.escape(synrepl.__version__)
        text = (REPOSITORY / "CHANGES.md").read_text(encoding="utf-8")
        self.assertRegex(text, rf"(?m)^## {version} \(\d{{4}}-\d\d-\d\d\)$")

    def test_begins_where_towncrier_inserts_the_next_section(self) -> None:
        settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
        start = settings["tool"]["towncrier"]["start_string"]
        text = (REPOSITORY / "CHANGES.md").read_text(encoding="utf-8")
        self.assertEqual(text.count(start), 1)

    def test_every_fragment_has_a_kind_that_towncrier_knows(self) -> None:
        settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
        kinds = "|".join(kind["directory"] for kind in settings["tool"]["towncrier"]["type"])
        for path in (REPOSITORY / "newsfragments").iterdir():
            if path.name != "README.md":
                self.assertRegex(path.name, rf"^(\+[a-z0-9-]+|\d+)\.({kinds})\.md$")

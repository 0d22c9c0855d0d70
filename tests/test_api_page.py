"""``docs/api.md`` is what its generator makes of the docstrings, and holds everything."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from unittest import TestCase

REPOSITORY = Path(__file__).resolve().parent.parent


def generator() -> ModuleType:
    """``docs/generate_api.py``, which is no part of a package."""
    path = REPOSITORY / "docs" / "generate_api.py"
    spec = importlib.util.spec_from_file_location("generate_api", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


class ApiPage(TestCase):
    maxDiff = None

    def test_is_up_to_date(self) -> None:
        made = generator()
        current = made.PAGE.read_text(encoding="utf-8")
        self.assertEqual(current, made.page(), "run: tox -e api")

    def test_has_every_name_once(self) -> None:
        sections = generator().SECTIONS
        for package in {section.package for section in sections}:
            listed = sorted(
                name for each in sections if each.package == package for name in each.names
            )
            offered = sorted({*importlib.import_module(package).__all__} - {"__version__"})
            self.assertEqual(listed, offered)

    def test_its_links_lead_somewhere(self) -> None:
        text = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")
        headings = re.findall(r"^#+ `?([\w .]+)`?", text, re.MULTILINE)
        anchors = {
            heading.strip().lower().replace(" ", "-").replace(".", "") for heading in headings
        }
        targets = set(re.findall(r"\]\(#([\w-]+)\)", text))
        self.assertEqual(targets - anchors, set())
        files = set(re.findall(r"\]\(([\w.]+\.md)\)", text))
        self.assertEqual(
            {name for name in files if not (REPOSITORY / "docs" / name).exists()}, set()
        )

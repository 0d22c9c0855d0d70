"""The Python of the pages on Spark: what it imports exists, and it uses no name that a reader does not have."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
from pathlib import Path
from unittest import TestCase

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = ("pipeline.md", "rooms-on-spark.md")
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)

#: What a reader has: a session, as in a notebook, rows to write, and the DSN of a copy of a database.
GIVEN = {"spark", "df", "copy_dsn"}


def names(page: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """The names that Python code loads or stores."""
    return {
        node.id
        for node in ast.walk(page)
        if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    }


class SparkPages(TestCase):
    def test_no_name_is_used_that_the_page_does_not_define(self) -> None:
        for page in PAGES:
            known = GIVEN | set(dir(builtins))
            for block in BLOCK.findall((DOCS / page).read_text()):
                code = ast.parse(block)
                known |= names(code, ast.Store)
                for node in ast.walk(code):
                    if isinstance(node, ast.Import | ast.ImportFrom):
                        known |= {alias.asname or alias.name for alias in node.names}
                    elif isinstance(node, ast.FunctionDef):
                        known |= {node.name, *(each.arg for each in node.args.args)}
                with self.subTest(page=page, block=block):
                    self.assertEqual(names(code, ast.Load) - known, set())

    def test_what_is_imported_exists(self) -> None:
        for page in PAGES:
            for block in BLOCK.findall((DOCS / page).read_text()):
                for node in ast.walk(ast.parse(block)):
                    if isinstance(node, ast.ImportFrom) and node.module is not None:
                        module = importlib.import_module(node.module)
                        for alias in node.names:
                            with self.subTest(page=page, module=node.module, name=alias.name):
                                self.assertTrue(hasattr(module, alias.name))

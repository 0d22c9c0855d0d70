"""The effects of declared streams on caches."""

from __future__ import annotations

from unittest import TestCase

from synrepl.streams.declared import BadDeclaration, declare
from synrepl.streams.definition import UNTAGGED
from synrepl.streams.effects import Invalidates, Marks

COLUMNS = {"order_id": "text", "customer": "bigint?", "note": "json?", "tags": "text[]?"}


class DeclaredEffectsTests(TestCase):
    def test_columns_form_keys_and_entities(self) -> None:
        stream = declare(
            "orders",
            COLUMNS,
            ephemeral=True,
            invalidates={"get_order": ["order_id"], "of": ["customer", "order_id"], "all": []},
            marks={"orders": "customer"},
        )
        row = stream.kinds[UNTAGGED]("o1", 7, {}, [])
        expected = [
            (effect.cache, list(effect.keys(row)))
            if isinstance(effect, Invalidates)
            else (effect.index, list(effect.entities(row)))
            for effect in stream.effects[stream.kinds[UNTAGGED]]
        ]
        self.assertEqual(
            expected,
            [("get_order", [("o1",)]), ("of", [(7, "o1")]), ("all", [()]), ("orders", [7])],
        )
        self.assertIsInstance(stream.effects[type(row)][-1], Marks)
        self.assertTrue(stream.ephemeral)
        self.assertFalse(declare("orders", COLUMNS).ephemeral)

    def test_refuses_columns_that_cannot_be_used(self) -> None:
        for effects, words in (
            ({"invalidates": {"get_order": ["id"]}}, "'orders'.*there is no column 'id'"),
            ({"invalidates": {"get_order": ["note"]}}, "'note' is 'json\\?'.*part of a key"),
            ({"marks": {"orders": "tags"}}, "'tags' is 'text\\[\\]\\?'"),
        ):
            with self.assertRaisesRegex(BadDeclaration, words):
                declare("orders", COLUMNS, **effects)

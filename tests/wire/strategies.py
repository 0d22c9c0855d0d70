"""Commands for Hypothesis, made from the table of dialects, so that new ones are covered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from hypothesis import strategies as st

from synrepl.wire import fields as f
from synrepl.wire.commands import Command
from synrepl.wire.dialects import DIALECTS, CommandLayout, Dialect

MAX = 2**63 - 1

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
one_line = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=30
).filter(lambda text: not text.endswith("\r"))
words = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=" "), min_size=1, max_size=20
)
numbers = st.integers(0, MAX) | st.sampled_from([0, 1, MAX])
signed = st.integers(-MAX - 1, MAX) | st.sampled_from([-MAX - 1, -1, 0])
keys = any_text | st.integers(-MAX, MAX) | st.booleans() | st.none() | st.floats(allow_nan=False)
rows = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX, MAX) | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=8,
).map(orjson.dumps)

_SEEN = st.tuples(any_text, any_text, any_text, st.none() | any_text, numbers)

#: A new kind without an entry here fails the tests.
VALUES: dict[f.ArgumentKind, st.SearchStrategy[Any]] = {
    f.NAME: words,
    f.WORD: words,
    f.DEVICE: st.none() | words.filter(lambda word: word != "None"),
    f.STATE: st.booleans(),
    f.NUMBER: numbers,
    f.SIGNED: signed,
    f.ROW_TOKEN: st.none() | numbers,
    f.START: st.none() | signed,
    f.TEXT: one_line,
    f.ROW: rows,
    f.KEYS_SPACED: st.lists(keys.filter(lambda key: key not in (1e999, -1e999))).map(tuple),
    f.SEEN_SPACED: _SEEN,
    f.SEEN_COMPACT: _SEEN,
    f.LOCK: st.tuples(any_text, any_text, any_text),
}


def layouts() -> Iterator[tuple[Dialect, CommandLayout]]:
    """Every line of the table."""
    for dialect in DIALECTS.values():
        for alternatives in dialect.layouts.values():
            for layout in alternatives:
                yield dialect, layout


@st.composite
def commands(draw: st.DrawFn, layout: CommandLayout) -> Command:
    """A command with a value for each argument of ``layout``."""
    values: dict[str, Any] = dict.fromkeys(layout.absent)
    for field in layout.fields:
        value = draw(VALUES[field.kind])
        if len(field.attributes) == 1:
            value = (value,)
        values.update(zip(field.attributes, value, strict=True))
    return layout.command(**values)

"""Parses the option ``where``.

    condition := part OR part OR …          part := item AND item AND …
    item      := NOT item | ( condition ) | test
    test      := column = value             also <> != < <= > >=
               | column [NOT] IN ( value , … )
               | column [NOT] BETWEEN value AND value
               | column [NOT] LIKE 'pattern'
               | column IS [NOT] NULL
    value     := 'text' | 12 | -1.5e3 | true | false

A column is a name, or any text in double quotes or backquotes. A quote in a text is doubled. Words
are case-insensitive. The result is a tree (:mod:`.condition`): no part of the option's text becomes
SQL as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from synrepl.core.errors import ConfigError
from synrepl.pipeline.source.where.condition import (
    Compared,
    Condition,
    Either,
    Every,
    IsNull,
    Like,
    Not,
    OneOf,
    Value,
)

#: Maximum length of the option, in characters.
MAX_LENGTH = 1_000_000

#: Maximum depth of nested parentheses and NOTs.
MAX_DEPTH = 50


class BadWhere(ConfigError):
    """option where of the synrepl source cannot be read at character {at} ({found}): {wanted}; it takes conditions such as: room_id = '!a:b.example' AND stream_id BETWEEN 1 AND 100"""


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)
      | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<word>[^\W\d]\w*)
      | (?P<sign><>|!=|<=|>=|[=<>(),])
    )""",
    re.VERBOSE,
)

_WORDS = {"and", "or", "not", "in", "between", "like", "is", "null", "true", "false"}

_WHOLE = re.compile(r"[+-]?\d+")

_OPERATORS = ("=", "<>", "!=", "<", "<=", ">", ">=")


class _Token(NamedTuple):
    """A token of the text.

    :ivar kind: ``text``, ``quoted``, ``number``, ``name``, ``sign`` (also for words of the grammar,
        in lower case) or ``end``
    :ivar at: its place, in characters, from 1
    """

    kind: str
    text: str
    at: int


def parse_where(text: str) -> Condition:
    """Parse a condition.

    :raises BadWhere: it is no condition, or too long or too deeply nested
    """
    if len(text) > MAX_LENGTH:
        raise BadWhere(at=MAX_LENGTH, found="too long", wanted=f"at most {MAX_LENGTH:,} characters")
    if "\0" in text:
        raise BadWhere(at=text.index("\0") + 1, found="NUL", wanted="text without this character")
    return _Parser(list(_tokens(text))).whole()


def _tokens(text: str) -> Iterator[_Token]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            at = len(text) - len(text[at:].lstrip())  # once: it is refused
            raise BadWhere(
                at=at + 1,
                found=repr(text[at : at + 20]),
                wanted="a column, a constant or an operator is expected",
            )
        kind = match.lastgroup or ""
        found, begins = match[kind], match.start(kind) + 1
        if kind == "word":
            is_word = found.lower() in _WORDS
            yield (
                _Token("sign", found.lower(), begins) if is_word else _Token("name", found, begins)
            )
        else:
            yield _Token(kind, found, begins)
        at = match.end()
    yield _Token("end", "", len(text) + 1)


class _Parser:
    """Parses by recursive descent, a method for each rule."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def whole(self) -> Condition:
        found = self._any_of()
        if self._token.kind != "end":
            raise self._bad("AND, OR or the end is expected")
        return found

    def _any_of(self) -> Condition:
        parts = self._joined("or", self._all_of)
        return parts[0] if len(parts) == 1 else Either(parts)

    def _all_of(self) -> Condition:
        parts = self._joined("and", self._item)
        return parts[0] if len(parts) == 1 else Every(parts)

    def _joined(self, word: str, part: Callable[[], Condition]) -> tuple[Condition, ...]:
        found = [part()]
        while self._taken(word):
            found.append(part())
        return tuple(found)

    def _item(self) -> Condition:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._bad(f"at most {MAX_DEPTH} parentheses or NOTs may be nested")
        try:
            if self._taken("not"):
                return Not(self._item())
            if self._taken("("):
                found = self._any_of()
                self._take(")")
                return found
            return self._test()
        finally:
            self._depth -= 1

    def _test(self) -> Condition:
        column = self._column()
        if self._token.kind == "sign" and self._token.text in _OPERATORS:
            return _compared(column, self._advance().text, self._value())
        if self._taken("is"):
            negated = self._taken("not")
            self._take("null")
            return _negated(negated, IsNull(column))
        negated = self._taken("not")
        if self._taken("in"):
            self._take("(")
            values = [self._value()]
            while self._taken(","):
                values.append(self._value())
            self._take(")")
            return _negated(negated, OneOf(column, tuple(values)))
        if self._taken("between"):
            low = self._value()
            self._take("and")
            ends = (Compared(column, ">=", low), Compared(column, "<=", self._value()))
            return _negated(negated, Every(ends))
        if self._taken("like"):
            return _negated(negated, Like(column, self._pattern()))
        raise self._bad("a comparison, IN, BETWEEN, LIKE or IS NULL is expected")

    def _column(self) -> str:
        if self._token.kind == "quoted":
            text = self._advance().text
            return text[1:-1].replace(text[0] * 2, text[0])
        if self._token.kind == "name":
            return self._advance().text
        raise self._bad("the name of a column is expected")

    def _value(self) -> Value:
        if self._taken("true"):
            return True
        if self._taken("false"):
            return False
        if self._token.kind == "text":
            return self._advance().text[1:-1].replace("''", "'")
        if self._token.kind == "number":
            number = self._token
            if not _WHOLE.fullmatch(number.text):
                self._advance()
                return float(number.text)
            if len(number.text) <= 20:  # a column has 64 bits
                self._advance()
                return int(number.text)
        raise self._bad("a text in single quotes, a number, true or false is expected")

    def _pattern(self) -> str:
        pattern = self._token
        value = self._value()
        if isinstance(value, str) and re.fullmatch(r"(?:[^\\]|\\.)*", value, re.DOTALL):
            return value
        self._next -= 1
        assert self._token is pattern
        raise self._bad("a pattern is expected: a text that does not end with an escape (\\)")

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _advance(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _taken(self, sign: str) -> bool:
        if self._token.kind == "sign" and self._token.text == sign:
            self._next += 1
            return True
        return False

    def _take(self, sign: str) -> None:
        if not self._taken(sign):
            raise self._bad(f"{sign.upper()} is expected")

    def _bad(self, wanted: str) -> BadWhere:
        token = self._token
        return BadWhere(
            at=token.at, found=repr(token.text[:20]) if token.text else "the end", wanted=wanted
        )


def _compared(column: str, operator: str, value: Value) -> Condition:
    is_unequal = operator in ("<>", "!=")
    return _negated(is_unequal, Compared(column, "=" if is_unequal else operator, value))


def _negated(negated: bool, condition: Condition) -> Condition:
    return Not(condition) if negated else condition

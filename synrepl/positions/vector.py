"""A reader's position in a stream, per writer, as one immutable value."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from synrepl.core.errors import InputError
from synrepl.core.names import BadName, writer_name
from synrepl.core.tokens import MAX_TOKEN, BadToken, Token, parse_token

#: More writers than any stream has; limits the memory that untrusted text can use.
MAX_WRITERS = 1000


class BadVector(InputError):
    """{text!r} is not a position: {reason}; a position looks like 10~writer1.12~writer2.15"""


class PositionVector:
    """A token per writer, plus the linear position, which covers all writers.

    :param writers: by writer, the token up to which its facts have been read
    :param linear: also applies to writers that are not named
    """

    __slots__ = ("_linear", "_writers")

    def __init__(self, writers: Mapping[str, Token] | None = None, linear: Token = 0) -> None:
        self._writers: Mapping[str, Token] = MappingProxyType(dict(writers or {}))
        self._linear = linear

    @property
    def writers(self) -> Mapping[str, Token]:
        """The named writers and their tokens."""
        return self._writers

    @property
    def linear(self) -> Token:
        """The linear position."""
        return self._linear

    def __getitem__(self, writer: str) -> Token:
        """The token up to which ``writer`` has been read, whether it is named or not."""
        token = self._writers.get(writer, 0)
        return token if token > self._linear else self._linear

    @property
    def highest(self) -> Token:
        """The largest token that may have been read."""
        return max(self._linear, *self._writers.values(), 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PositionVector):
            return NotImplemented
        return self._linear == other._linear and self._writers == other._writers

    def __hash__(self) -> int:
        return hash((self._linear, frozenset(self._writers.items())))

    def __repr__(self) -> str:
        return f"PositionVector({dict(self._writers)!r}, linear={self._linear})"

    def advance(self, writer: str, token: Token) -> PositionVector:
        """This vector with ``writer`` at ``token``, unless it is already further."""
        if token <= self._writers.get(writer, -1):
            return self
        return PositionVector({**self._writers, writer: token}, self._linear)

    def advance_linear(self, token: Token) -> PositionVector:
        """This vector with the linear position at ``token``, unless it is already further."""
        return self if token <= self._linear else PositionVector(self._writers, token)

    def merge(self, other: PositionVector) -> PositionVector:
        """The union of what two readers have read."""
        writers = dict(self._writers)
        for writer, token in other._writers.items():
            writers[writer] = max(token, writers.get(writer, 0))
        return PositionVector(writers, max(self._linear, other._linear))

    def covers(self, other: PositionVector) -> bool:
        """Whether everything that ``other`` covers is covered by this vector."""
        return self._linear >= other._linear and all(
            self[writer] >= token for writer, token in other._writers.items()
        )

    def to_json(self) -> dict[str, object]:
        """``{"linear": 10, "writers": {"writer1": 12}}``."""
        return {"linear": self._linear, "writers": dict(sorted(self._writers.items()))}

    @classmethod
    def from_json(cls, value: object) -> PositionVector:
        """Parse the output of :meth:`to_json`.

        :raises BadVector: it is anything else
        """
        if not isinstance(value, dict) or value.keys() != {"linear", "writers"}:
            raise _bad(value, "an object with 'linear' and 'writers' is needed")
        writers = value["writers"]
        if not isinstance(writers, dict):
            raise _bad(value, "'writers' must be an object")
        if len(writers) > MAX_WRITERS:
            raise _bad(value, f"it has more than {MAX_WRITERS} writers")
        tokens = {_writer(name, value): _token(token, value) for name, token in writers.items()}
        return cls(tokens, _token(value["linear"], value))

    def __str__(self) -> str:
        """One word that needs no quoting in a shell or a URL: ``10~writer1.12~writer2.15``."""
        parts = [f"{writer}.{token}" for writer, token in sorted(self._writers.items())]
        return "~".join([str(self._linear), *parts])

    @classmethod
    def parse(cls, text: str) -> PositionVector:
        """Parse the output of ``str()``; a plain number is a linear position.

        :raises BadVector: it is anything else
        """
        linear, *parts = text.split("~", MAX_WRITERS + 1)
        if len(parts) > MAX_WRITERS:
            raise _bad(text, f"it has more than {MAX_WRITERS} writers")
        writers: dict[str, Token] = {}
        for part in parts:
            name, dot, token = part.rpartition(".")
            if not dot:
                raise _bad(text, f"{part[:100]!r} is not a writer, '.' and a token")
            if _writer(name, text) in writers:
                raise _bad(text, f"writer {name!r} is in it twice")
            writers[name] = _parsed(token, text)
        return cls(writers, _parsed(linear, text))


_WANTED = "a token is a whole number between 0 and 2^63-1"


def _bad(value: object, reason: str) -> BadVector:
    text = value[:100] if isinstance(value, str) else f"a JSON {type(value).__name__}"
    return BadVector(text=text, reason=reason)


def _writer(name: object, whole: object) -> str:
    try:
        if isinstance(name, str):
            return writer_name(name)
    except BadName as error:
        raise _bad(whole, str(error)) from None
    raise _bad(whole, "a writer's name must be text")


def _token(token: object, whole: object) -> Token:
    if type(token) is not int or not 0 <= token <= MAX_TOKEN:
        raise _bad(whole, _WANTED)
    return token


def _parsed(token: str, whole: str) -> Token:
    try:
        return parse_token(token)
    except BadToken:
        raise _bad(whole, _WANTED) from None

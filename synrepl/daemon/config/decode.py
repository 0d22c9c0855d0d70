"""Decodes a merged document into frozen dataclasses, with errors that name file, line and key.

All errors are reported at once, in the order of the files. Each section of the configuration
is a dataclass: its field names are the keys (``metadata={"key": …}`` where a key cannot be a
field name), and its defaults are the defaults. The annotation alone determines the accepted
values: ``str``, ``int``, ``bool``, ``Any``, ``Literal``, ``tuple[X, ...]`` for a list,
``Mapping[str, X]``, unions, other sections, and ``Annotated[X, Scalar(…)]`` for values that
a function reads.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from synrepl.core.errors import ConfigError, InputError, SynreplError, errors_in, raise_all
from synrepl.daemon.config.files import ConfigFault, Document, KeyPath, SettingLocation, in_order
from synrepl.daemon.config.yaml import UNREADABLE

T = TypeVar("T")


class UnknownSetting(ConfigError):
    """{place}: there is no setting {key!r}; the nearest valid key is {nearest!r}"""


class MissingSetting(ConfigError):
    """{place}: the setting {key!r} is required; give it {wanted}"""


class WrongSetting(ConfigError):
    """{place}: {key!r} must be {wanted}, not {found}"""


class BadSetting(ConfigError):
    """{place}: {key!r}: {reason}"""


class Unfit(ConfigError):
    """{key!r}: {reason}"""


class Section:
    """Base class of the dataclasses that hold a part of the configuration."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Refuse inconsistent fields, in a configuration built in Python as well.

        :raises Unfit: :raises ConfigErrors: several of them
        """
        raise_all(list(self.faults()))

    def faults(self) -> Iterator[Unfit]:
        """Check the fields against one another; overridden by sections that need it."""
        return iter(())


@dataclass(frozen=True, slots=True)
class Scalar:
    """How one kind of value is read.

    :ivar wanted: a noun phrase for error messages
    :ivar read: converts the YAML value, given its location, to the typed value; raises
        ``ValueError`` for any other value, or an ``InputError`` whose message says more
    :ivar private: the value may contain a password, so errors do not repeat it
    """

    wanted: str
    read: Callable[[Any, SettingLocation], Any]
    private: bool = False


def decode(section: type[T], document: Document) -> T:
    """Read a whole document as ``section``.

    :class:`Unfit` errors of a section are given their location.

    :raises UnknownSetting: :raises MissingSetting: :raises WrongSetting: :raises BadSetting:
    :raises ConfigErrors: several of them, or faults of the document
    """
    result, errors = _read(section, document)
    raise_all(errors)
    assert result is not None
    return result


def errors_of(section: type[Any], document: Document) -> list[ConfigError]:
    """The errors that :func:`decode` would raise, in the order of the files."""
    return _read(section, document)[1]


def _read(section: type[T], document: Document) -> tuple[T | None, list[ConfigError]]:
    decoder = _Decoder(document)
    result: T | None = None
    with suppress(_Unusable):
        result = decoder.section(section, document.content, ())
    return result, in_order(document.faults + decoder.faults)


class _Unusable(Exception):
    """A value is wrong, and its fault has been recorded."""


class _Decoder:
    def __init__(self, document: Document) -> None:
        self._document = document
        self.faults: list[ConfigFault] = []

    def value(self, hint: Any, value: Any, path: KeyPath) -> Any:
        """Read ``value`` according to the annotation ``hint``."""
        if value is UNREADABLE:
            raise _Unusable
        origin, args = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self._scalar(args[1], value, path)
        if is_dataclass(hint):
            return self.section(hint, value, path)
        if origin in (Union, types.UnionType):
            return self._union(args, value, path)
        if origin is tuple:
            return self._list(hint, args[0], value, path)
        if origin is Mapping:
            return self._map(hint, args, value, path)
        if hint is Any or (origin is Literal and value in args) or type(value) is hint:
            return value
        if hint is types.NoneType and value is None:
            return None
        raise self._wrong(_wanted(hint), value, path)

    def section(self, cls: Any, value: Any, path: KeyPath) -> Any:
        """Read a map as the dataclass ``cls``."""
        shorthand = getattr(cls, "shorthand", None)
        if value is None:
            value = {}  # 'log:' with every key below it commented out
        if shorthand is not None and isinstance(value, str):
            value = {shorthand: value}
        if not isinstance(value, dict):
            raise self._wrong(_wanted(cls), value, path)
        by_key = {key_of(field): field for field in fields(cls)}
        for key in value:
            if key not in by_key:
                self._unknown(key, list(by_key), path)
        hints = get_type_hints(cls, include_extras=True)
        arguments: dict[str, Any] = {}
        complete = True
        for key, field in by_key.items():
            hint = hints[field.name]
            try:
                if key in value:
                    arguments[field.name] = self.value(hint, value[key], (*path, key))
                elif field.default is MISSING and field.default_factory is MISSING:
                    raise self._missing(hint, (*path, key))
            except _Unusable:
                complete = False
        if not complete or (self._document.faults and not path):
            raise _Unusable
        try:
            return cls(**arguments)
        except ConfigError as error:
            for unfit in errors_in(error):
                self._unfit(unfit, path)
            raise _Unusable from None

    def _scalar(self, scalar: Scalar, value: Any, path: KeyPath) -> Any:
        place = self._document.place(path)
        try:
            return scalar.read(value, place)
        except InputError as error:
            raise self._note(path, BadSetting(place=place, key=place.key, reason=error)) from None
        except ValueError:
            raise self._wrong(scalar.wanted, value, path, scalar.private) from None

    def _union(self, choices: tuple[Any, ...], value: Any, path: KeyPath) -> Any:
        here = self._document.place(path).key
        for choice in choices:
            if value is None and choice is not types.NoneType:
                continue
            if isinstance(value, str) and get_origin(choice) is tuple:
                continue  # 'al' for 'all' must not become a list of one
            before = len(self.faults)
            try:
                return self.value(choice, value, path)
            except _Unusable:
                errors = [fault.error for fault in self.faults[before:]]
                if any(not _is_about(error, here) for error in errors):
                    raise  # the right kind of value, with an error inside it
                del self.faults[before:]
        private = any(_is_private(choice) for choice in choices)
        raise self._wrong(_either(choices), value, path, private)

    def _list(self, hint: Any, item: Any, value: Any, path: KeyPath) -> tuple[Any, ...]:
        if isinstance(value, str):
            value = [value]  # one name stands for a list of one
        if not isinstance(value, list):
            raise self._wrong(_wanted(hint), value, path)
        return tuple(self._all((item, each, (*path, i)) for i, each in enumerate(value)))

    def _map(self, hint: Any, args: tuple[Any, ...], value: Any, path: KeyPath) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise self._wrong(_wanted(hint), value, path)
        keys, values = args
        pairs = self._all(
            pair
            for key, each in value.items()
            for pair in ((keys, key, (*path, key)), (values, each, (*path, key)))
        )
        return dict(zip(pairs[::2], pairs[1::2], strict=True))

    def _all(self, wanted: Iterable[tuple[Any, Any, KeyPath]]) -> list[Any]:
        """Read several values, and record a fault for each that is wrong."""
        found, complete = [], True
        for hint, value, path in wanted:
            try:
                found.append(self.value(hint, value, path))
            except _Unusable:
                complete = False
        if not complete:
            raise _Unusable
        return found

    def _unknown(self, key: str, valid: list[str], path: KeyPath) -> None:
        nearest = difflib.get_close_matches(key[:100], valid, n=1, cutoff=0.0)[0]
        place = self._document.place((*path, key))
        error = UnknownSetting(place=place, key=place.key, nearest=nearest)
        self._note((*path, key), error)

    def _missing(self, hint: Any, path: KeyPath) -> _Unusable:
        if self._document.faults:
            return _Unusable()  # it may be in the part that could not be read
        place = self._document.place(path)
        error = MissingSetting(place=place, key=place.key, wanted=_wanted(hint))
        return self._note(path, error)

    def _wrong(self, wanted: str, value: Any, path: KeyPath, private: bool = False) -> _Unusable:
        place = self._document.place(path)
        found = "something else" if private else _describe(value)
        error = WrongSetting(place=place, key=place.key, wanted=wanted, found=found)
        return self._note(path, error)

    def _unfit(self, unfit: SynreplError, path: KeyPath) -> None:
        keys = str(unfit.facts["key"]).split(".")
        path = (*path, *(int(key) if key.isdigit() else key for key in keys))
        place = self._document.place(path)
        error = BadSetting(place=place, key=place.key, reason=unfit.facts["reason"])
        self._note(path, error)

    def _note(self, path: KeyPath, error: ConfigError) -> _Unusable:
        self.faults.append(self._document.fault(path, error))
        return _Unusable()


def _is_about(error: ConfigError, key: str) -> bool:
    """Whether an error says that this key's value is of the wrong kind."""
    return isinstance(error, WrongSetting) and error.facts["key"] == key


def key_of(field: Field[Any]) -> str:
    """The key that fills a dataclass field."""
    return str(field.metadata.get("key", field.name))


_PHRASES = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    types.NoneType: "nothing",
}


def _wanted(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return str(args[1].wanted)
    if origin in (Union, types.UnionType):
        return _either(args)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in args)
    if origin is tuple:
        return f"a list ({_wanted(args[0])} each)"
    return _PHRASES.get(hint, "a map of settings")


def _either(choices: tuple[Any, ...]) -> str:
    return " or ".join(_wanted(choice) for choice in choices if choice is not types.NoneType)


def _is_private(hint: Any) -> bool:
    return get_origin(hint) is Annotated and get_args(hint)[1].private


def _describe(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    text = str(value)
    shown = text if len(text) <= 60 else text[:60] + "…"
    return (
        f"the text {shown!r}" if isinstance(value, str) else f"the {type(value).__name__} {shown}"
    )

"""Options of Spark data sources and sinks: validated, and named in the error when they are wrong."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from synrepl.core.errors import ConfigError
from synrepl.core.private_files import BadSecretFile, read_private
from synrepl.driver.dsn import refuse_plain_text

Number = TypeVar("Number", int, float)
Word = TypeVar("Word", bound=StrEnum)

#: Maximum number of characters of a value in an error message.
_SHOWN = 100


class UnknownOption(ConfigError):
    """the synrepl {end} has no option {option!r}{hint}; it has {known}"""


class OptionMissing(ConfigError):
    """the synrepl {end} wants the option {option}: {what}"""


class BadOption(ConfigError):
    """option {option} of the synrepl {end} is {value!r}; it has to be {wanted}"""


class NoDsnFile(ConfigError):
    """the file of option database_path, {path}, {problem}"""


class DataSourceOptions:
    """The options of one source or sink; names are case-insensitive, values are text.

    :param end: ``source`` or ``sink``, for messages
    :param options: as Spark passes them
    :param known: the names of all options
    :param ignored: names that Spark itself adds, in lower case
    :raises UnknownOption: an option is not ``known``
    """

    def __init__(
        self,
        end: str,
        options: Mapping[str, str],
        known: Collection[str],
        ignored: Collection[str] = (),
    ) -> None:
        self._end = end
        lowered = {name.lower(): value for name, value in options.items()}
        self._values = {name: lowered[name] for name in lowered.keys() - set(ignored)}
        for option in sorted(self._values.keys() - set(known)):
            near = difflib.get_close_matches(option[:_SHOWN], known, n=1)
            raise UnknownOption(
                end=end,
                option=option[:_SHOWN],
                hint=f"; did you mean {near[0]!r}?" if near else "",
                known=", ".join(sorted(known)),
            )

    def __contains__(self, option: str) -> bool:
        return option in self._values

    def bad(self, option: str, wanted: str) -> BadOption:
        """The error for an option whose value is invalid."""
        value = self._values.get(option, "")[:_SHOWN]
        return BadOption(end=self._end, option=option, value=value, wanted=wanted)

    def text(self, option: str) -> str | None:
        """The value of an option; None if it was not set."""
        return self._values.get(option)

    def needed(self, option: str, what: str) -> str:
        """The value of a required option.

        :param what: describes the option in the error message
        :raises OptionMissing: it is not set, or blank
        """
        text = self._values.get(option, "").strip()
        if not text:
            raise OptionMissing(end=self._end, option=option, what=what)
        return text

    def dsn(self) -> str:
        """The DSN: the option ``database``, or the contents of the file ``database_path``.

        :raises OptionMissing: :raises BadOption: :raises NoDsnFile:
        :raises PlainTextDatabase: it is on another machine, not encrypted, and not ``insecure``
        """
        path = self._values.get("database_path", "").strip()
        if not path:
            what = "a DSN, or the option database_path: a file that has it"
            found = self.needed("database", what)
        elif self._values.get("database", "").strip():
            raise self.bad("database_path", "left out when there is a database")
        else:
            try:
                found = read_private(Path(path))
            except BadSecretFile as error:
                raise NoDsnFile(
                    path=Path(path).absolute(), problem=error.facts["problem"]
                ) from None
        if not self.flag("insecure"):
            refuse_plain_text(found, "the option insecure=true")
        return found

    def flag(self, option: str) -> bool:
        """True or false; false if it was not set.

        :raises BadOption:
        """
        text = self._values.get(option, "false").strip().lower()
        if text not in ("true", "false"):
            raise self.bad(option, "true or false")
        return text == "true"

    def count(self, option: str, default: int) -> int:
        """A whole number, 1 or more.

        :raises BadOption:
        """
        return self._number(option, int, default, 1, "a whole number, 1 or more")

    def seconds(self, option: str, default: float) -> float:
        """Seconds, 0 or more.

        :raises BadOption:
        """
        return self._number(option, float, default, 0.0, "a number of seconds, 0 or more")

    def word(self, option: str, words: type[Word], default: Word) -> Word:
        """One of ``words``, case-insensitive.

        :raises BadOption:
        """
        text = self._values.get(option)
        if text is None:
            return default
        try:
            return words(text.strip().lower())
        except ValueError:
            wanted = " or ".join(repr(str(each)) for each in words)
            raise self.bad(option, wanted) from None

    def _number(
        self,
        option: str,
        read: Callable[[str], Number],
        default: Number,
        least: Number,
        wanted: str,
    ) -> Number:
        text = self._values.get(option)
        if text is None:
            return default
        try:
            value = read(text)
        except ValueError:
            raise self.bad(option, wanted) from None
        # False for NaN and infinity, too.
        if not least <= value <= 2**53:
            raise self.bad(option, wanted)
        return value

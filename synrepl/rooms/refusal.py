"""The refusal of an event by a rule."""

from __future__ import annotations

from typing import NamedTuple


class Refusal(NamedTuple):
    """An event is not allowed.

    :ivar code: identifies the rule: stable, lower-case words joined by ``-``
    :ivar sentence: the reason, for people
    """

    code: str
    sentence: str

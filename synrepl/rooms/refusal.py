"""What a rule answers."""

from __future__ import annotations

from typing import NamedTuple


class Refusal(NamedTuple):
    """An event is not allowed.

    :ivar code: which rule refuses it, a word or a few with ``-`` between them; does not change
    :ivar sentence: why, for a person
    """

    code: str
    sentence: str

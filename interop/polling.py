"""Polling for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from synrepl.core.errors import Unavailable

T = TypeVar("T")

_LOOK_EVERY_S = 0.1


class NotInTime(Unavailable):
    """waited {seconds:g} s in vain for this: {what}"""


def wait_until(what: str, look: Callable[[], T | None], seconds: float = 30.0) -> T:
    """Poll until the result is true, and return it.

    :param what: what is waited for, for messages
    :param look: may raise :exc:`OSError` while a process is not there yet
    :raises NotInTime: the result was not true within ``seconds``
    """
    give_up = time.monotonic() + seconds
    while True:
        try:
            found = look()
        except OSError:
            found = None
        if found:
            return found
        if time.monotonic() > give_up:
            raise NotInTime(what=what, seconds=seconds)
        time.sleep(_LOOK_EVERY_S)


def wait_until_stable(look: Callable[[], T], still_s: float, seconds: float) -> T:
    """Poll until the result has not changed for ``still_s`` seconds, and return it.

    If it keeps changing, the last result is returned after ``seconds``.
    """
    begun = since = time.monotonic()
    seen = look()
    while time.monotonic() - since < still_s and time.monotonic() - begun < seconds:
        time.sleep(_LOOK_EVERY_S)
        now = look()
        if now != seen:
            seen, since = now, time.monotonic()
    return seen

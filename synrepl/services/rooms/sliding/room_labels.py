"""What a user's account data says of rooms: which are direct chats, and how they are tagged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RoomLabels:
    """The labels of a user's rooms.

    :ivar direct: IDs of the rooms in ``m.direct``
    :ivar tags: names of the tags in ``m.tag``, by room ID; rooms without any are left out
    """

    direct: frozenset[str] = frozenset()
    tags: Mapping[str, frozenset[str]] = field(default_factory=dict)


NO_LABELS = RoomLabels()

"""Small rooms whose events are made by hand, each with what it follows and cites."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from synrepl.rooms.event import Event
from synrepl.rooms.partial import PartialJoin, PartialRoom, join_partially
from synrepl.rooms.room import Room
from synrepl.rooms.state import StateKey
from tests.rooms.auth_rooms import ALICE, CAROL
from tests.rooms.auth_rooms import Room as Made

LOCAL_USER = "@us:here"


class SmallRoom:
    """Alice made a public room in which everybody may change the state; Carol is in it.

    :param users: those with more power than nothing
    """

    def __init__(
        self, version: str = "10", users: dict[str, int] | None = None, **creation: Any
    ) -> None:
        self.made = Made(version, **creation)
        self.version = self.made.version
        self.create = self.made.creation
        self.implied = self.version.room_id_is_create_hash
        self.alice = self.member(ALICE, "join", [self.create], [self.create])
        cites = [self.create, self.alice]
        free = {"state_default": 0, "users": users or {}}
        self.levels = self.event("m.room.power_levels", free, cites[-1:], cites, key="")
        cites = [*cites, self.levels]
        rule = {"join_rule": "public"}
        self.rules = self.event("m.room.join_rules", rule, cites[-1:], cites, key="")
        self.carol = self.member(CAROL, "join", [self.rules], [self.create, self.rules])

    @property
    def base(self) -> list[Event]:
        """The state without Carol."""
        return [self.create, self.alice, self.levels, self.rules]

    def event(
        self,
        kind: str,
        content: dict[str, Any],
        follows: Iterable[Event],
        cites: Iterable[Event],
        sender: str = ALICE,
        key: str | None = None,
        **more: Any,
    ) -> Event:
        cited = [each for each in cites if not (self.implied and each.is_create)]
        return self.made.event(
            kind,
            content,
            sender,
            key,
            prev=tuple(each.event_id for each in follows),
            auth=tuple(each.event_id for each in cited),
            **more,
        )

    def member(
        self, user: str, membership: str, follows: Iterable[Event], cites: Iterable[Event]
    ) -> Event:
        return self.event("m.room.member", {"membership": membership}, follows, cites, user, user)

    def message(self, *follows: Event, **more: Any) -> Event:
        """By Alice."""
        return self.event("m.room.message", {}, follows, (self.create, self.alice), **more)

    def topic(self, *follows: Event, **more: Any) -> Event:
        """By Alice."""
        return self.event("m.room.topic", {}, follows, (self.create, self.alice), key="", **more)

    def state(self, *events: Event) -> dict[StateKey, str]:
        return {(each.type, each.state_key or ""): each.event_id for each in events}

    def joined(self, *more: Event, after: Event | None = None) -> tuple[PartialRoom, Event]:
        """The room as we joined it, with a part of its state, and our join.

        :param more: events of the state beyond those of :attr:`base`
        """
        state = [*self.base, *more]
        follows = self.event("m.room.message", {}, (), ()) if after is None else after
        join = self.member(LOCAL_USER, "join", [follows], [self.create, self.rules])
        answer = PartialJoin(join, state, [], frozenset({"a"}))
        return join_partially(Room(self.version), answer, "here"), join

"""The presence of users in the process that decides it: states, and when they end.

Each user belongs to one of the processes that write the stream ``presence``. The others tell it who syncs with them, and
who does anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from synrepl.storage.clients.values import Presence

ONLINE, UNAVAILABLE, OFFLINE = "online", "unavailable", "offline"
STATES = (ONLINE, UNAVAILABLE, OFFLINE)

#: Seconds after which a user who does nothing is not active, and is not there.
ACTIVE_S, IDLE_S = 60.0, 300.0

#: Seconds for which a user is online without syncing.
WITHOUT_SYNC_S = 30.0

#: Seconds for which a process's report counts that a user syncs there; it is repeated in time.
REPORT_COUNTS_S = 150.0

#: Stands for a process where there is none.
_NOWHERE = ""


@dataclass(slots=True)
class _User:
    """What is known of a user who is not offline, was not until lately, or of whom something has to be written.

    :ivar told: what was written last; None: nothing
    :ivar wanted: what the user's last sync asked for
    :ivar active_at: when the user last did anything, in seconds since 1970
    :ivar set_at: when the user last set a state, which nothing changes that the user did before
    :ivar syncing: until when each process's report counts
    """

    told: Presence | None
    state: str
    status_msg: str | None
    active_at: float
    set_at: float = -inf
    wanted: str | None = None
    syncing: dict[str, float] = field(default_factory=dict)


class PresenceStates:
    """The states of users, under a clock that is passed in. Nothing is stored here."""

    def __init__(self) -> None:
        self._users: dict[str, _User] = {}

    def __len__(self) -> int:
        """Number of users that are not offline, or were not until lately."""
        return len(self._users)

    def unknown(self, users: Iterable[str]) -> list[str]:
        """Those of some users of whom nothing is known: what is stored of them has to be read first."""
        return sorted({each for each in users if each not in self._users})

    def load(self, stored: Iterable[Presence], now: float) -> None:
        """Take over what is stored; for some time a user who is not offline counts as one who syncs."""
        for each in stored:
            self._users.setdefault(
                each.user_id,
                _User(
                    each,
                    each.state,
                    each.status_msg,
                    each.last_active_ts / 1000,
                    syncing={} if each.state == OFFLINE else {_NOWHERE: now + REPORT_COUNTS_S},
                ),
            )

    # -- what happens -------------------------------------------------------------------------

    def set(self, user_id: str, state: str, status_msg: str | None, now: float) -> None:
        """A user sets a state, which counts until a later sync asks for another one."""
        user = self._user(user_id)
        user.state, user.status_msg, user.set_at = state, status_msg, now
        # It counts for some time although nothing reports a sync.
        user.syncing[_NOWHERE] = max(user.syncing.get(_NOWHERE, 0.0), now + WITHOUT_SYNC_S)
        if state == ONLINE:
            user.active_at = now

    def syncs(self, user_id: str, instance: str, wanted: str, began_at: float, now: float) -> None:
        """A user syncs with a process, and wants to be online or unavailable.

        :param began_at: when the last of the syncs began; they are reported late
        """
        user = self._user(user_id)
        user.syncing[instance] = now + REPORT_COUNTS_S
        before, user.wanted = user.wanted, wanted
        if began_at >= user.set_at and (user.state == OFFLINE or before not in (None, wanted)):
            user.state = wanted
            if wanted == ONLINE:
                user.active_at = now

    def ceases(self, user_id: str, instance: str) -> None:
        """A user does not sync with a process any more."""
        user = self._users.get(user_id)
        if user is not None:
            user.syncing.pop(instance, None)

    def acts(self, user_id: str, at: float) -> None:
        """A user has done something, which is reported late."""
        user = self._users.get(user_id)
        if user is not None and user.state != OFFLINE and at >= user.set_at:
            user.active_at = max(user.active_at, at)
            if user.wanted != UNAVAILABLE:
                user.state = ONLINE

    def _user(self, user_id: str) -> _User:
        return self._users.setdefault(user_id, _User(None, OFFLINE, None, 0.0))

    # -- what is to be told -------------------------------------------------------------------

    def changed(self, now: float, users: Collection[str] | None = None) -> list[Presence]:
        """What has to be written of users, because something happened or time has passed.

        :param users: only these; None: all
        """
        found = []
        for user_id in list(self._users if users is None else users):
            user = self._users.get(user_id)
            if user is None:
                continue
            self._end(user, now)
            presence = _presence(user_id, user, now)
            if _is_other(user.told, presence):
                found.append(presence)
            elif _is_forgotten(user):
                del self._users[user_id]
        return found

    def _end(self, user: _User, now: float) -> None:
        user.syncing = {name: until for name, until in user.syncing.items() if until > now}
        quiet_s = now - user.active_at
        if user.state != OFFLINE and not user.syncing and quiet_s >= WITHOUT_SYNC_S:
            user.state, user.wanted = OFFLINE, None
        elif user.state == ONLINE and quiet_s >= IDLE_S:
            user.state = UNAVAILABLE

    def written(self, presences: Sequence[Presence]) -> None:
        """These are written."""
        for each in presences:
            user = self._users.get(each.user_id)
            if user is not None:
                user.told = each
                if each.state == OFFLINE and _is_forgotten(user):
                    del self._users[each.user_id]

    def statuses(self) -> Mapping[str, str]:
        """The state of each user that is not offline."""
        return {name: user.state for name, user in self._users.items() if user.state != OFFLINE}


def _is_forgotten(user: _User) -> bool:
    """Whether nothing that was before the user went offline can be reported any more."""
    return user.state == OFFLINE and not user.syncing


def _presence(user_id: str, user: _User, now: float) -> Presence:
    is_active = user.state == ONLINE and now - user.active_at < ACTIVE_S
    return Presence(user_id, user.state, user.status_msg, int(user.active_at * 1000), is_active)


def _is_other(told: Presence | None, new: Presence) -> bool:
    """Whether others have to be told; the time of the last activity alone is no reason."""
    if told is None:
        return new.state != OFFLINE or new.status_msg is not None
    return (told.state, told.status_msg, told.currently_active) != (
        new.state,
        new.status_msg,
        new.currently_active,
    )

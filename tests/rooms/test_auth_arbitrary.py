"""The auth rules on whatever may be in events: there is always an answer."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from synrepl.rooms.auth.authorise import authorise
from synrepl.rooms.auth.selection import auth_event_keys, check_auth_events
from synrepl.rooms.auth.state_independent import check_state_independent
from synrepl.rooms.event import Event
from synrepl.rooms.state import StateKey
from synrepl.rooms.versions import ROOM_VERSIONS
from tests.rooms.auth_rooms import ALICE, BOB, LEVELS_TYPE, Room

_USERS = st.sampled_from([ALICE, BOB, "@", "nobody", ""])
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.sampled_from(["join", "invite", "knock", "leave", "ban", "restricted", "public", "50"])
    | _USERS
    | st.text(max_size=3)
)
_NAMES = st.sampled_from(
    (
        "membership join_rule users events ban users_default notifications third_party_invite signed"
        " mxid token signatures ed25519:0 public_key public_keys creator room_version m.federate"
        f" additional_creators redacts join_authorised_via_users_server a {ALICE}"
    ).split()
)
_JSON = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)
_CONTENTS = st.dictionaries(_NAMES, _JSON, max_size=5)
_TYPES = st.sampled_from(
    [
        "m.room.create",
        "m.room.member",
        "m.room.join_rules",
        "m.room.power_levels",
        "m.room.aliases",
        "m.room.third_party_invite",
        "m.room.redaction",
        "m.room.message",
    ]
)


@st.composite
def _events(draw: st.DrawFn, room: Room) -> Event:
    return room.event(
        draw(_TYPES),
        draw(_CONTENTS),
        draw(_USERS),
        draw(st.none() | _USERS),
        prev=draw(st.sampled_from([(), ("$p:a",), (room.creation.event_id,)])),
        redacts=draw(_LEAVES),
        signatures=draw(_JSON),
    )


class AuthoriseArbitraryEvents(TestCase):
    """Whatever is in events, there is an answer."""

    @settings(max_examples=400)
    @given(st.data())
    def test_arbitrary_events_never_raise(self, data: st.DataObject) -> None:
        room = Room(data.draw(st.sampled_from(sorted(ROOM_VERSIONS))))
        events = data.draw(st.lists(_events(room), max_size=5))
        if data.draw(st.booleans()):
            # A membership or a level that rules look at, so that they get further.
            room.put(LEVELS_TYPE, data.draw(_CONTENTS))
        for event in events:
            if event.state_key is not None:
                room.state[event.type, event.state_key] = event
        event = data.draw(_events(room))
        state = room.state
        for refusal in (
            authorise(event, state),
            check_state_independent(event),
            check_auth_events(event, events, {events[0].event_id} if events else ()),
        ):
            self.assertTrue(refusal is None or (refusal.code and refusal.sentence))
        keys = auth_event_keys(event)
        self.assertEqual(len(keys), len(set(keys)))

    @settings(max_examples=300)
    @given(st.data())
    def test_reads_only_the_keys_that_authorise_the_event(self, data: st.DataObject) -> None:
        room = Room(data.draw(st.sampled_from(sorted(ROOM_VERSIONS))))
        room.join(BOB)
        room.rule(data.draw(st.sampled_from(["public", "restricted", "knock", "invite", 7])))
        event = data.draw(_events(room))
        allowed = {("m.room.create", ""), *auth_event_keys(event)}

        class Narrow:
            def get(self, key: StateKey) -> Event | None:
                assert key in allowed, key
                return room.state.get(key)

        self.assertEqual(
            authorise(event, Narrow()),  # type: ignore[arg-type]
            authorise(event, room.state),
        )

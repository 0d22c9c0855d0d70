"""Which tests cover the scenarios of the public test suite of joins with partial state.

The suite is ``tests/msc3902`` of Complement (https://github.com/matrix-org/complement): 65 tests, three of which only group
others, and five of which it skips. The scenarios are told in our own words; each is a test of ours, or there is a reason
why it is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from unittest import TestCase

HELD_UP = "tests.services.federation.resync.test_rooms_while_partial."
READING = "tests.services.federation.resync.test_reading_partial_rooms.ReadingPartialRooms."
SLIDING = "tests.services.federation.resync.test_sliding_partial_rooms."
STORED = "system_tests.federation.test_partial_room_scenarios.PartialRoomScenarios."
PROCESSES = "system_tests.federation.test_partial_rooms.PartialRoomsOfProcesses."
EDUS = "tests.services.federation.test_edus."
TYPING = "tests.services.rooms.client_data.test_typing_service.TypingServices."
EDUS_OUT = "tests.services.federation.sending.test_sending_edus.DeviceListsTest."

LAZY = READING + "test_clients_that_load_members_lazily_get_the_room_at_once"
EAGER = READING + "test_others_get_it_when_it_is_complete_as_newly_joined"
WAITING = PROCESSES + "test_who_waits_at_a_worker_is_answered_when_the_room_is_complete"
NO_JOIN_BY_US = (
    HELD_UP + "AnswersToOthers.test_nobody_joins_or_knocks_by_a_server_that_is_joining_itself"
)
ALIASES = HELD_UP + "OwnUsers.test_aliases_are_added_found_and_removed"
DEVICES = HELD_UP + "ChangedDevices."

#: Scenarios in our words, in the order of the suite, with the tests that cover them.
SCENARIOS: Mapping[str, Sequence[str]] = {
    "a first sync with all members leaves the room out until it is complete": [EAGER],
    "so does a later sync with all members": [EAGER],
    "a sync that waits is answered when the room is complete": [WAITING],
    "a sync that loads members lazily has the room at once": [
        LAZY,
        SLIDING + "SlidingPartialRooms.test_who_loads_members_lazily_gets_the_room_at_once",
    ],
    "a message can be sent at once": [
        HELD_UP + "EventsOfOthers.test_messages_come_in_both_directions",
        STORED + "test_a_message_can_be_sent_at_once",
    ],
    "typing of a member who is not known is shown": [
        TYPING + "test_members_of_other_servers_who_are_not_known_type_in_a_partial_room",
    ],
    "presence of a user of another server is taken (the suite skips it)": [
        EDUS + "EdusIntoStreams.test_each_edu_is_a_fact_of_its_stream",
    ],
    "messages to devices come": [EDUS + "ReceivedEdus.test_device_lists_and_messages_to_devices"],
    "a receipt of a member who is not known is shown": [
        EDUS + "EdusIntoPartialRooms.test_receipts_of_members_who_are_not_known_count",
    ],
    "changed devices of a member become a fact": [
        EDUS + "ReceivedEdus.test_device_lists_and_messages_to_devices",
    ],
    "changed signing keys of a member become the same fact": [
        EDUS + "ReceivedEdus.test_device_lists_and_messages_to_devices",
    ],
    "events of others come, and have their full states in the end": [
        HELD_UP + "EventsOfOthers.test_messages_come_in_both_directions",
        "tests.services.federation.resync.test_random_partial_rooms.RandomPartialRooms"
        ".test_a_completed_room_is_as_if_everything_had_been_known",
    ],
    "so do those with a missing parent": [
        HELD_UP + "EventsOfOthers.test_a_missing_parent_is_fetched"
    ],
    "and with two parents, of which one is missing": [
        HELD_UP + "EventsOfOthers.test_one_of_two_parents_is_missing",
    ],
    "and with a parent of which a parent is missing": [
        HELD_UP + "EventsOfOthers.test_a_grandparent_is_missing_that_is_given_only_as_a_state",
    ],
    "a first lazy sync has the membership of who spoke": [LAZY],
    "so has a lazy sync with a gap": [LAZY],
    "and one without": [LAZY],
    "who asks for the members waits for the full state": [
        READING + "test_members_and_whole_states_are_refused_as_long_as_they_are_unknown",
        READING + "test_who_waits_is_woken_when_the_room_is_complete",
    ],
    "the completion goes on after a restart": [
        "tests.services.federation.resync.test_completing.CompletedRooms"
        ".test_a_process_that_was_killed_goes_on_when_it_starts_again",
        "tests.services.federation.resync.test_killed_resyncs.KilledResyncs"
        ".test_a_resync_goes_on_wherever_it_is_killed",
    ],
    "another server is asked where one answers nonsense": [
        HELD_UP + "AnswersToOthers.test_another_server_is_asked_where_one_answers_nonsense",
        "system_tests.federation.test_lying_servers.LyingServers"
        ".test_a_bad_list_is_recorded_and_another_server_is_asked",
    ],
    "a sync with a gap, after the completion, has memberships that were not known before": [
        READING + "test_shared_tails_of_rooms_tell_nothing_of_partial_ones",
        LAZY,
    ],
    "events that come before those that they follow do not keep a room from being completed": [
        HELD_UP + "EventsOfOthers.test_many_events_come_first_as_a_state_and_then_one_by_one",
    ],
    "rejected events stay rejected": [
        HELD_UP + "WrongVerdicts.test_what_is_rejected_stays_rejected"
    ],
    "state that was accepted wrongly is withdrawn": [
        HELD_UP + "WrongVerdicts.test_what_was_accepted_wrongly_is_withdrawn",
    ],
    "state that was rejected wrongly appears": [
        HELD_UP + "WrongVerdicts.test_what_was_rejected_wrongly_appears",
    ],
    "make_join is refused": [NO_JOIN_BY_US],
    "send_join is refused": [NO_JOIN_BY_US],
    "who asks who has joined waits for the full state": [WAITING],
    "make_knock is refused": [NO_JOIN_BY_US],
    "send_knock is refused": [NO_JOIN_BY_US],
    "changed devices of our users are told (a group)": [],
    "to all servers that the answer to the join named": [
        EDUS_OUT + "test_servers_of_partial_rooms_are_told_as_long_as_these_are_partial",
    ],
    "to servers that joined since": [
        EDUS_OUT + "test_tells_each_server_that_shares_a_room_once_for_each_change",
    ],
    "and no more, once the room is complete, to servers that have left": [
        EDUS_OUT + "test_servers_of_partial_rooms_are_told_as_long_as_these_are_partial",
    ],
    "later to servers that were removed wrongly": [
        DEVICES + "test_a_server_that_was_removed_wrongly_is_told",
    ],
    "also if they have left since, and share another room": [
        DEVICES + "test_one_that_has_left_since_is_told_if_it_shares_another_room",
    ],
    "later to servers that the answer to the join did not name": [
        STORED + "test_servers_that_were_not_known_are_told_of_changed_devices",
    ],
    "also if these have left since, and share another room": [
        DEVICES + "test_one_that_has_left_since_is_told_if_it_shares_another_room",
    ],
    "devices of users of other servers are known (a group)": [],
    "of members before the join; that these change is told": [
        EDUS + "EdusIntoStreams.test_each_edu_is_a_fact_of_its_stream",
    ],
    "room aliases are added and found": [ALIASES],
    "room aliases are added and removed": [ALIASES],
    "a second user joins": [
        STORED + "test_a_second_user_joins_by_a_handshake_of_its_own",
        HELD_UP + "OwnUsers.test_the_first_user_leaves_after_a_second_one_has_joined",
    ],
    "a user changes its name": [HELD_UP + "OwnUsers.test_a_user_changes_its_name"],
    "a user leaves (a group)": [],
    "which is seen after the completion": [
        STORED + "test_a_room_that_one_of_two_users_left_is_completed"
    ],
    "and does not wait for it": [
        HELD_UP + "OwnUsers.test_who_leaves_does_not_wait_and_may_come_back",
    ],
    "also after a second user has joined": [
        HELD_UP + "OwnUsers.test_the_first_user_leaves_after_a_second_one_has_joined",
    ],
    "and comes back before the completion": [
        HELD_UP + "OwnUsers.test_who_leaves_does_not_wait_and_may_come_back",
    ],
    "and another one joins before the completion": [
        HELD_UP + "OwnUsers.test_another_user_joins_a_room_that_the_first_one_left",
    ],
    "or is kicked by a user of another server": [
        READING + "test_who_leaves_a_partial_room_is_told",
        STORED + "test_a_user_who_is_kicked_is_out_and_the_room_let_go_when_servers_refuse",
    ],
    "or is banned, and not let in again": [
        HELD_UP + "OwnUsers.test_who_is_banned_is_out_at_once_and_is_not_let_in_again",
    ],
    "the number of members is right in the end": [
        HELD_UP + "OwnUsers.test_the_number_of_members_is_right_in_the_end",
    ],
    "the room is removed meanwhile": [
        STORED + "test_a_room_that_is_removed_meanwhile_is_forgotten_with_all_its_rows",
    ],
}

#: Why others are none: nobody's device keys are kept here, and `/keys/query` is answered without any.
_NO_KEYS = "device keys of users of other servers are not kept, so none can be out of date"

#: Scenarios that are no test of ours, and why.
OTHERS: Mapping[str, str] = {
    "devices of members before the join who also join another room": _NO_KEYS,
    "devices of members who joined since": _NO_KEYS,
    "devices of a new member who leaves": _NO_KEYS,
    "devices of members when our user leaves (the suite skips it)": _NO_KEYS,
    "devices of members when the completion fails (the suite skips it)": _NO_KEYS,
    "devices of a user who was no member": _NO_KEYS,
    "devices of such a user who joins before the completion (the suite skips it)": _NO_KEYS,
    "devices of such a user who joins after the completion": _NO_KEYS,
    "devices of such a user who joins another room meanwhile (the suite skips it)": _NO_KEYS,
    "the directory of users is right in the end": "there is no directory of users",
}


class PublicScenarios(TestCase):
    """The table."""

    def test_has_all_of_them(self) -> None:
        self.assertEqual(len(SCENARIOS) + len(OTHERS), 65)

    def test_names_tests_that_there_are(self) -> None:
        for names in SCENARIOS.values():
            for name in names:
                self.assertTrue(callable(resolve_name(name)), name)

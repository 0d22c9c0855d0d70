"""Who may see an event."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TESTS = ("tests.rooms.test_visibility",)
AUDIENCE = "visibility/audience.py"
CLIENTS = "visibility/clients.py"
SERVERS = "visibility/servers.py"

VISIBILITY = (
    Mutant(
        "visibility-unknown-is-joined",
        AUDIENCE,
        "_BY_NAME.get(value, HistoryVisibility.SHARED)",
        "_BY_NAME.get(value, HistoryVisibility.JOINED)",
        "an unknown visibility means shared",
        TESTS,
    ),
    Mutant(
        "visibility-change-by-new-only",
        AUDIENCE,
        "widest = max(old, visibility)",
        "widest = visibility",
        "a change of visibility is visible to users who could see the old or the new one",
        TESTS,
    ),
    Mutant(
        "visibility-state-before",
        AUDIENCE,
        "membership(event if sets else before.get((MEMBER, user)))",
        "membership(before.get((MEMBER, user)))",
        "membership counts after the event",
        TESTS,
    ),
    Mutant(
        "visibility-soft-failed-shown",
        AUDIENCE,
        "    if soft_failed:\n",
        "    if False:\n",
        "soft-failed events are hidden from clients",
        TESTS,
    ),
    Mutant(
        "visibility-aliases-shown",
        AUDIENCE,
        "    elif event.type == ALIASES:\n",
        "    elif False:\n",
        "m.room.aliases is hidden from clients",
        TESTS,
    ),
    Mutant(
        "visibility-dummy-shown",
        AUDIENCE,
        "    elif event.type == DUMMY:\n",
        "    elif False:\n",
        "org.matrix.dummy_event is hidden from clients",
        TESTS,
    ),
    Mutant(
        "visibility-erased-kick-shown",
        CLIENTS,
        " and not (own and membership == LEAVE)",
        "",
        "a user who is kicked by an erased sender sees the redacted event",
        TESTS,
    ),
    Mutant(
        "visibility-ignored-state-hidden",
        CLIENTS,
        "not audience.is_state and audience.sender in viewer.ignored",
        "audience.sender in viewer.ignored",
        "state of ignored users is shown",
        TESTS,
    ),
    Mutant(
        "visibility-peeking-sees-shared",
        CLIENTS,
        "is HistoryVisibility.SHARED and not viewer.is_peeking",
        "is HistoryVisibility.SHARED",
        "peeking users see only world-readable history",
        TESTS,
    ),
    Mutant(
        "visibility-invited-sees-joined",
        CLIENTS,
        "audience.visibility is HistoryVisibility.INVITED and membership == INVITE",
        "membership == INVITE",
        "an invitation opens history only where the visibility is invited",
        TESTS,
    ),
    Mutant(
        "visibility-own-change-by-new-only",
        CLIENTS,
        "more_permissive(membership, audience.target_before) if own else membership",
        "membership",
        "a user's own change of membership counts by its more permissive side",
        TESTS,
    ),
    Mutant(
        "visibility-erased-shown",
        CLIENTS,
        "    whole = not is_erased or there\n",
        "    whole = True\n",
        "erased senders' events are shown redacted",
        TESTS,
    ),
    Mutant(
        "visibility-erased-redacted-for-members",
        CLIENTS,
        "    whole = not is_erased or there\n",
        "    whole = not is_erased\n",
        "users who were in the room still see an erased sender's events",
        TESTS,
    ),
    Mutant(
        "visibility-end-of-invitation-hidden",
        CLIENTS,
        "audience.target_before == INVITE and membership == LEAVE",
        "False",
        "an invited user sees the end of the invitation",
        TESTS,
    ),
    Mutant(
        "visibility-server-invited-needs-member",
        SERVERS,
        "VisibilityReason.INVITED if best == INVITE else VisibilityReason.NOT_INVITED",
        "VisibilityReason.NOT_INVITED",
        "a server with an invited user sees events for invited users",
        TESTS,
    ),
    Mutant(
        "visibility-server-of-last-user",
        SERVERS,
        "more_permissive(found.get(server, LEAVE), membership(entry))",
        "membership(entry)",
        "a server sees the events that any of its users sees",
        TESTS,
    ),
)

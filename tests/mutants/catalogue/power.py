"""Power levels, and redactions by the auth rules."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TESTS = ("tests.rooms.test_auth_levels", "tests.rooms.test_auth_vectors")
LEVELS = "auth/power_levels.py"
REDACTION = "auth/power_levels.py"

POWER = (
    Mutant(
        "levels-state-default",
        LEVELS,
        '"state_default": 50',
        '"state_default": 0',
        "state events require power 50 by default",
        TESTS,
    ),
    Mutant(
        "levels-invite-default",
        LEVELS,
        '"invite": 0',
        '"invite": 50',
        "inviting requires no power by default",
        TESTS,
    ),
    Mutant(
        "levels-no-booleans",
        LEVELS,
        "isinstance(value, (str, bool))",
        "isinstance(value, str)",
        "before version 10, booleans are levels",
        TESTS,
    ),
    Mutant(
        "levels-creator-by-default",
        LEVELS,
        "_CREATOR_AT_FIRST = 100",
        "_CREATOR_AT_FIRST = 0",
        "without power levels, the creator has 100",
        TESTS,
    ),
    Mutant(
        "levels-creators-below",
        LEVELS,
        "_INFINITE = math.inf",
        "_INFINITE = 100",
        "from version 12 on, creators are above all levels",
        TESTS,
    ),
    Mutant(
        "levels-creator-named",
        LEVELS,
        "refusal = new.error or _no_creators(new, create)",
        "refusal = new.error",
        "from version 12 on, power levels do not name creators",
        TESTS,
    ),
    Mutant(
        "levels-send-equal",
        LEVELS,
        "if levels.to_send(event) > levels.of(event.sender):",
        "if levels.to_send(event) >= levels.of(event.sender):",
        "exactly the required level is enough",
        TESTS,
    ),
    Mutant(
        "levels-change-above",
        LEVELS,
        "if was is not None and was > power:",
        "if False:",
        "users cannot change a level above their own",
        TESTS,
    ),
    Mutant(
        "levels-change-equal",
        LEVELS,
        "if was is not None and was > power:",
        "if was is not None and was >= power:",
        "a level as high as one's own may be changed",
        TESTS,
    ),
    Mutant(
        "levels-set-above",
        LEVELS,
        "        if becomes is not None and becomes > power:\n            return Refusal(\n",
        "        if False:\n            return Refusal(\n",
        "users cannot set a level above their own",
        TESTS,
    ),
    Mutant(
        "levels-grant-above",
        LEVELS,
        '        if becomes is not None and becomes > power:\n            return Refusal("level-gift"',
        '        if False:\n            return Refusal("level-gift"',
        "users cannot grant more power than they have",
        TESTS,
    ),
    Mutant(
        "levels-of-peer",
        LEVELS,
        "was is not None and was >= power:",
        "was is not None and was > power:",
        "users cannot change the level of an equal",
        TESTS,
    ),
    Mutant(
        "levels-own",
        LEVELS,
        "if user != sender and was is not None",
        "if was is not None",
        "users may lower their own level",
        TESTS,
    ),
    Mutant(
        "levels-notifications",
        LEVELS,
        "or _within(power, old.notifications, new.notifications)",
        "",
        "from version 6 on, levels of notifications are checked",
        TESTS,
    ),
    Mutant(
        "levels-users-no-ids",
        LEVELS,
        'if not all(map(is_user_id, maps["users"])):',
        "if False:",
        "levels are assigned to valid user IDs",
        TESTS,
    ),
    Mutant(
        "levels-removed",
        LEVELS,
        "        becomes = new.get(name)\n",
        "        becomes = new.get(name, was)\n",
        "removing a level is a change",
        TESTS,
    ),
    Mutant(
        "redaction-powerless",
        REDACTION,
        "server_part(target) == server",
        "True",
        "in versions 1 and 2, redacting others' events requires power",
        TESTS,
    ),
)

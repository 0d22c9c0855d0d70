"""What users of two servers do to each other in a room, with the other side waited for."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex

from interop import http_request
from interop.federation.client import Client
from interop.federation.steps import Steps
from interop.matrix_client import q

#: For what a server takes its time with.
LONG_S = 300.0

#: Rounds in which both sides do something at the same time.
_AT_ONCE = 5


def talk(steps: Steps, room: str, who: str, one: Client, other: Client) -> None:
    """A message of one side, which it redacts."""
    event = one.say(room, f"a message of {who}")
    steps.holds(f"a message of {who} arrives", lambda: other.event(room, event))
    one.redact(room, event)
    steps.holds(f"it is redacted by {who}", lambda: is_redacted(other, room, event))


def change(steps: Steps, room: str, who: str, one: Client, other: Client) -> None:
    """A topic of one side."""
    topic = f"{who} {token_hex(4)}"
    one.set_state(room, "m.room.topic", {"topic": topic})
    steps.holds(
        f"a topic of {who} arrives",
        lambda: (other.content_of(room, "m.room.topic") or {}).get("topic") == topic,
    )


def both_ways(steps: Steps, room: str, alice: Client, host: Client) -> None:
    """Messages, redactions and topics of both sides."""
    for who, one, other in (("ours", alice, host), ("theirs", host, alice)):
        talk(steps, room, who, one, other)
    for who, one, other in (("ours", alice, host), ("theirs", host, alice)):
        change(steps, room, who, one, other)


def make_moderators(room: str, host: Client, *users: str) -> str:
    """Have the user who created a room make others moderators, who may do everything but that; the event ID."""
    levels = dict(host.content_of(room, "m.room.power_levels") or {})
    levels["users"] = {**levels.get("users", {}), **dict.fromkeys(users, 60)}
    return host.set_state(room, "m.room.power_levels", levels)


def at_once(steps: Steps, room: str, alice: Client, host: Client) -> None:
    """Topics and messages of both sides at the same time, so that the room forks."""

    def act(client: Client) -> str:
        for number in range(_AT_ONCE):
            client.say(room, f"at once {number}")
            client.set_state(room, "m.room.topic", {"topic": f"{client.id} {number}"})
        return client.say(room, "at once, the last")

    with ThreadPoolExecutor(2) as pool:
        last = list(pool.map(act, (alice, host)))
    steps.holds(
        "what both sides do at the same time arrives",
        lambda: host.event(room, last[0]) and alice.event(room, last[1]),
    )


def moderate(
    steps: Steps, room: str, alice: Client, host: Client, targets: Sequence[str], guest: Client
) -> None:
    """Kicks, bans and redactions, both ways; each is waited for as an event at the other side.

    :param alice: of ours, a moderator
    :param host: of theirs
    :param targets: three users of theirs
    :param guest: of ours, whom theirs kick and ban
    """
    for who, one, other, target, membership in (
        ("ours", alice, host, targets[0], "leave"),
        ("ours", alice, host, targets[1], "ban"),
        ("theirs", host, alice, targets[2], "leave"),
        ("theirs", host, alice, targets[2], "ban"),
        ("theirs", host, alice, guest.id, "leave"),
        ("theirs", host, alice, guest.id, "ban"),
    ):
        _removed(steps, room, who, one, other, target, membership)
    host.moderate(room, "unban", guest.id)
    steps.holds(
        "their unban of our user arrives", lambda: alice.membership(room, guest.id) == "leave"
    )
    for who, one, other in (("ours", alice, host), ("theirs", host, alice)):
        _redacted(steps, room, who, one, other)


def _redacted(steps: Steps, room: str, who: str, one: Client, other: Client) -> None:
    said = other.say(room, f"something that {who} will not leave as it is")
    steps.holds("a message to be redacted arrives", lambda: one.event(room, said))
    one.redact(room, said)
    steps.holds(
        f"{who} redact what a user of the other side said", lambda: is_redacted(other, room, said)
    )


def _removed(
    steps: Steps, room: str, who: str, one: Client, other: Client, target: str, membership: str
) -> None:
    content = {"membership": membership}
    name = target.partition(":")[0]
    done = steps.does(
        f"{who} set {name} to {membership!r}",
        lambda: one.set_state(room, "m.room.member", content, target),
    )
    steps.holds("which arrives", lambda: done and other.event(room, done))


def completes(steps: Steps, room: str, alice: Client, host: Client) -> None:
    """A partial room of ours completes, and is like theirs then."""

    def answers() -> bool:
        found: http_request.Answer = alice.answer("GET", f"/rooms/{q(room)}/members")
        return found.status == 200

    steps.holds("the room completes", answers, LONG_S)
    are_alike(steps, room, alice, host)


def are_alike(steps: Steps, room: str, alice: Client, host: Client) -> None:
    """Both sides have the same state and the same members."""
    steps.settles("the states are equal", lambda: alice.state(room), lambda: host.state(room))
    steps.settles(
        "the member lists are equal", lambda: alice.members(room), lambda: host.members(room)
    )


def is_redacted(client: Client, room: str, event: str) -> bool:
    """Whether a user sees an event without its content."""
    return not (client.event(room, event) or {"content": 1})["content"]

"""Users of ours in rooms of the real server: private ones, those with rules, and a public one."""

from __future__ import annotations

from interop.federation.client import Client
from interop.federation.comparison import compare, page_back
from interop.federation.exchanges import are_alike, at_once, both_ways, make_moderators, moderate
from interop.federation.our_server import OurServer
from interop.federation.steps import Steps
from interop.federation.synapse_server import SynapseServer
from interop.matrix_client import q
from interop.releases import CURRENT
from interop.report import Section

_ADMITTED = """\
Private rooms, rooms at which users knock, and rooms that let in the members of another one, on both sides. (Only private rooms
with 1.43.0: in the answers to knocks and to joins of restricted rooms, it has the names of drafts of the specification.)"""

_JOINED = """\
Both sides talk, change state, redact, kick and ban. In the end, what our server stored is compared with the real server's
database: every event, the verdict on it and the state after it."""


def invitations(ours: OurServer, theirs: SynapseServer) -> Section:
    """Invites, knocks and restricted rooms, in both directions."""
    section = Section(
        f"Invites, knocks and restricted rooms with {theirs.release}", _ADMITTED.splitlines()
    )
    steps = Steps(section)
    alice, bob = ours.client("alice"), ours.client("bob")
    sam, una = theirs.register("samuel"), theirs.register("una")
    # The newest version that both know.
    version = None if theirs.release is CURRENT else "9"
    _admit(steps, "ours", ours.name, alice, (sam, una), version)
    _admit(steps, "theirs", theirs.name, sam, (alice, bob), version)
    return section


def _admit(
    steps: Steps,
    who: str,
    server: str,
    host: Client,
    guests: tuple[Client, Client],
    version: str | None,
) -> None:
    guest, second = guests
    chosen = {} if version is None else {"room_version": version}
    private = host.create_room("Private", preset="private_chat", **chosen)
    host.moderate(private, "invite", guest.id)
    steps.holds(f"an invite to a private room of {who} arrives", lambda: guest.is_invited(private))
    steps.does("it is accepted", lambda: guest.join(private))
    host.moderate(private, "invite", second.id)
    steps.holds("another one arrives", lambda: second.is_invited(private))
    steps.holds(
        "and becomes a part of the room at its server, which is in it",
        lambda: guest.membership(private, second.id) == "invite",
    )
    second.ask("POST", f"/rooms/{q(private)}/leave", {})
    steps.holds("it is rejected", lambda: host.membership(private, second.id) == "leave")
    steps.equal("the states are equal", lambda: guest.state(private), lambda: host.state(private))
    if version is None:
        _knock(steps, who, server, host, guest)
        _restrict(steps, who, server, host, guests, private)


def _knock(steps: Steps, who: str, server: str, host: Client, guest: Client) -> None:
    knocked = host.create_room("Knock", initial_state=[_rule("knock")])
    guest.ask("POST", f"/knock/{q(knocked)}?via={q(server)}&server_name={q(server)}", {})
    steps.holds(
        f"a knock at a room of {who} arrives", lambda: host.membership(knocked, guest.id) == "knock"
    )
    host.moderate(knocked, "invite", guest.id)
    steps.holds("it is answered by an invite", lambda: guest.is_invited(knocked))
    steps.does("by which the user joins", lambda: guest.join(knocked))


def _restrict(
    steps: Steps, who: str, server: str, host: Client, guests: tuple[Client, Client], allowed: str
) -> None:
    member, other = guests
    restricted = host.create_room("Restricted", initial_state=[_rule("restricted", allowed)])
    steps.does(
        f"a member of the room that a restricted room of {who} allows joins",
        lambda: member.join(restricted, server),
    )
    answer = other.answer("POST", f"/join/{q(restricted)}?via={q(server)}", {})
    steps.refused("another user does not", 403, answer.status)


def joined(ours: OurServer, theirs: SynapseServer) -> Section:
    """A user of ours in a public room of theirs."""
    section = Section(f"Our user in a room of {theirs.release}", _JOINED.splitlines())
    steps = Steps(section)
    alice, bob = ours.client("alice"), ours.client("bob")
    host, *guests = (theirs.register(name) for name in ("host", "theresa", "ulla", "viola"))
    room = host.create_room("Theirs")
    for each in guests:
        each.join(room)
    for number in range(5):
        host.say(room, f"message {number}")
    steps.does("our user joins", lambda: alice.join(room, theirs.name))
    outcomes = ours.status()["other_servers"]["joins"]["outcomes"]
    partial = theirs.release is CURRENT
    claim = f"it was a join with {'partial' if partial else 'the whole'} state"
    section.check(claim, outcomes.get("partial" if partial else "whole", 0) > 0, str(outcomes))
    steps.does("a second one joins", lambda: bob.join(room, theirs.name))
    levels = make_moderators(room, host, alice.id)
    steps.holds("power levels that they set arrive here", lambda: alice.event(room, levels))
    both_ways(steps, room, alice, host)
    moderate(steps, room, alice, host, [each.id for each in guests], bob)
    at_once(steps, room, alice, host)
    are_alike(steps, room, alice, host)
    steps.does("our user reads the whole history", lambda: page_back(alice, room))
    compare(section, ours, theirs, room)
    return section


def _rule(rule: str, allowed: str | None = None) -> object:
    content: dict[str, object] = {"join_rule": rule}
    if allowed is not None:
        content["allow"] = [{"type": "m.room_membership", "room_id": allowed}]
    return {"type": "m.room.join_rules", "state_key": "", "content": content}

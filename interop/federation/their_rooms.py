"""Users of ours in rooms of the real server: private ones, those with rules, and a large one."""

from __future__ import annotations

from interop import http_request
from interop.federation.client import Client
from interop.federation.our_server import OurServer
from interop.federation.steps import Steps
from interop.federation.synapse_server import SynapseServer
from interop.matrix_client import q
from interop.report import Section
from interop.synrepl_processes import synrepl

#: For what the real server takes its time with.
_LONG_S = 300.0

_ADMITTED = """\
Private rooms, rooms at which users knock, and rooms that let in the members of another one, on both sides."""

_MANY = """\
A room of the real server has {members} members, whom an application service made. A user of ours joins partially and talks
at once; the rest of the room follows."""

_STOPPED = """\
Another server of ours joins the same room partially. As soon as its user is in the room, the real server is killed, and our
master too; ours is started again, and talks in the room; then theirs is."""


def invitations(ours: OurServer, theirs: SynapseServer) -> Section:
    """Invites, knocks and restricted rooms, in both directions."""
    section = Section("Invites, knocks and restricted rooms", _ADMITTED.splitlines())
    steps = Steps(section)
    alice, bob = ours.client("alice"), ours.client("bob")
    sam, una = theirs.register("samuel"), theirs.register("una")
    _admit(steps, "ours", ours.name, alice, (sam, una))
    _admit(steps, "theirs", theirs.name, sam, (alice, bob))
    return section


def _admit(
    steps: Steps, who: str, server: str, host: Client, guests: tuple[Client, Client]
) -> None:
    guest, second = guests
    private = str(host.ask("POST", "/createRoom", {"preset": "private_chat"})["room_id"])
    host.moderate(private, "invite", guest.id)
    steps.holds(f"an invite to a private room of {who} arrives", lambda: guest.is_invited(private))
    steps.does("it is accepted", lambda: guest.join(private))
    host.moderate(private, "invite", second.id)
    steps.holds("another one arrives", lambda: second.is_invited(private))
    second.ask("POST", f"/rooms/{q(private)}/leave", {})
    steps.holds("it is rejected", lambda: host.membership(private, second.id) == "leave")
    steps.equal("the states are equal", lambda: guest.state(private), lambda: host.state(private))
    knocked = host.create_room("Knock", initial_state=[_rule("knock")])
    guest.ask("POST", f"/knock/{q(knocked)}?via={q(server)}&server_name={q(server)}", {})
    steps.holds(
        f"a knock at a room of {who} arrives", lambda: host.membership(knocked, guest.id) == "knock"
    )
    host.moderate(knocked, "invite", guest.id)
    steps.holds("it is answered by an invite", lambda: guest.is_invited(knocked))
    steps.does("by which the user joins", lambda: guest.join(knocked))
    restricted = host.create_room("Restricted", initial_state=[_rule("restricted", private)])
    steps.does(
        f"a member of the room that a restricted room of {who} allows joins",
        lambda: guest.join(restricted, server),
    )
    answer = second.answer("POST", f"/join/{q(restricted)}?via={q(server)}", {})
    steps.refused("another user does not", 403, answer.status)


def large(ours: OurServer, theirs: SynapseServer, sam: Client, room: str, members: int) -> Section:
    """A partial join of a room of theirs with many members, and its completion."""
    section = Section(
        "Our user in a large room of theirs", _MANY.format(members=members).splitlines()
    )
    steps = Steps(section)
    alice = ours.client("alice")
    steps.does("our user joins", lambda: alice.join(room, theirs.name))
    event = steps.does("and talks at once", lambda: alice.say(room, "at once"))
    partial = ours.status()["other_servers"]["joins"]["outcomes"].get("partial", 0)
    section.check("it was a partial join", partial > 0)
    steps.holds("the message arrives", lambda: sam.event(room, event or ""))
    _talks(steps, room, alice, sam)
    _completes(steps, room, alice, sam)
    alice.set_state(room, "m.room.member", {"membership": "join", "displayname": "A"}, alice.id)
    steps.holds(
        "a changed membership arrives afterwards",
        lambda: (sam.content_of(room, "m.room.member", alice.id) or {}).get("displayname") == "A",
    )
    sam.moderate(room, "kick", alice.id)
    steps.holds(
        "their kick of our user arrives", lambda: alice.membership(room, alice.id) == "leave"
    )
    steps.does("who joins again", lambda: alice.join(room, theirs.name))
    _completes(steps, room, alice, sam)
    return section


def stopped(ours: OurServer, theirs: SynapseServer, sam: Client, room: str) -> Section:
    """The real server, and our own, are killed while a partial room is being completed."""
    section = Section("Both are killed amid the completion", _STOPPED.splitlines())
    steps = Steps(section)
    alice = ours.client("alice")
    steps.does("our user joins", lambda: alice.join(room, theirs.name))
    theirs.end(kill=True)
    ours.end("master", kill=True)
    ours.start("master")
    listed = synrepl("rooms", "resync", "-c", ours.config())
    section.check("the room is listed as partial after the kills", room in listed)
    again = ours.client("alice")
    event = steps.does("our user talks", lambda: again.say(room, "while you were away"))
    theirs.start()
    steps.holds(
        "the message arrives once theirs is back", lambda: sam.event(room, event or ""), _LONG_S
    )
    _talks(steps, room, again, sam)
    _completes(steps, room, again, sam)
    return section


def _talks(steps: Steps, room: str, alice: Client, sam: Client) -> None:
    said = sam.say(room, "a message of theirs")
    steps.holds("a message of theirs arrives", lambda: alice.event(room, said))
    sam.set_state(room, "m.room.topic", {"topic": said})
    steps.holds(
        "a topic of theirs arrives",
        lambda: (alice.content_of(room, "m.room.topic") or {}).get("topic") == said,
    )
    sam.redact(room, said)
    steps.holds(
        "a redaction of theirs arrives",
        lambda: not (alice.event(room, said) or {"content": 1})["content"],
    )


def _completes(steps: Steps, room: str, alice: Client, sam: Client) -> None:
    def answers() -> bool:
        found: http_request.Answer = alice.answer("GET", f"/rooms/{q(room)}/members")
        return found.status == 200

    steps.holds("the room completes", answers, _LONG_S)
    steps.equal("the states are equal", lambda: alice.state(room), lambda: sam.state(room))
    steps.equal(
        "the member lists are equal", lambda: alice.members(room), lambda: sam.members(room)
    )


def _rule(rule: str, allowed: str | None = None) -> object:
    content: dict[str, object] = {"join_rule": rule}
    if allowed is not None:
        content["allow"] = [{"type": "m.room_membership", "room_id": allowed}]
    return {"type": "m.room.join_rules", "state_key": "", "content": content}

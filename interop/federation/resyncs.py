"""Partial joins of large rooms, in both directions, while servers are slow, killed and started again."""

from __future__ import annotations

from interop.federation.client import Client
from interop.federation.comparison import compare, page_back
from interop.federation.exchanges import (
    LONG_S,
    are_alike,
    at_once,
    both_ways,
    change,
    completes,
    make_moderators,
    moderate,
    talk,
)
from interop.federation.gate import Gate
from interop.federation.our_server import OurServer
from interop.federation.steps import Steps
from interop.federation.synapse_server import SynapseServer
from interop.report import Section
from interop.synrepl_processes import synrepl

#: The path of the request by which the completion of a room begins.
_STATE_IDS = "/state_ids/"

_LARGE = """\
A room of the real server has {members:,} members, whom an application service made. A user of ours joins partially and
talks at once. The real server does not answer requests for the state of the room at first, as if it were slow, so
all that both sides do meanwhile happens in a partial room. Then it answers, and the room completes. In the end, our user
reads the whole history, and what our server stored is compared with the real server's database: every event, the verdict
on it, and the state after it."""

_STOPPED = """\
Another server of ours joins the same room partially. While it waits for the state of the room, the real server is
killed, and our master and worker too. Ours are started again, and their user talks in the room; then theirs is started."""

_AWAY = """\
A second real server is in the room. Another server of ours joins partially through the first one, which is killed while it is
being asked for the state of the room. The second one serves it. In the end the first one is started again."""

_COMPLETING = """\
A room of ours has {members:,} members of one real server. A second real server joins it partially through ours, and is killed while it
waits for the state of the room; then it is started again, and completes the room. What it stored is compared with what we have."""

_PARTIAL = "SELECT 1 FROM partial_state_rooms WHERE room_id = %s"


def large(
    ours: OurServer, theirs: SynapseServer, gate: Gate, host: Client, room: str, members: int
) -> Section:
    """A partial join of a room of theirs with many members, and its completion."""
    section = Section(
        "Our users in a large room of theirs", _LARGE.format(members=members).splitlines()
    )
    steps = Steps(section)
    alice, bob = ours.client("alice"), ours.client("bob")
    gate.hold(_STATE_IDS)
    steps.does("our user joins", lambda: alice.join(room, theirs.name))
    event = steps.does("and talks at once", lambda: alice.say(room, "at once"))
    steps.holds("the state of the room is requested", gate.has_held)
    _is_listed(section, ours, room)
    steps.holds("the message arrives", lambda: host.event(room, event or ""))
    steps.does("a second user of ours joins the partial room", lambda: bob.join(room, theirs.name))
    levels = make_moderators(room, host, alice.id)
    steps.holds("power levels of theirs arrive", lambda: alice.event(room, levels))
    both_ways(steps, room, alice, host)
    moderate(steps, room, alice, host, [theirs.member(each) for each in range(3)], bob)
    at_once(steps, room, alice, host)
    section.check("the room is partial all the time", _is_partial(ours, room))
    gate.release()
    completes(steps, room, alice, host)
    both_ways(steps, room, alice, host)
    steps.does("our second user joins again", lambda: bob.join(room, theirs.name))
    moderate(steps, room, alice, host, [theirs.member(each) for each in range(3, 6)], bob)
    at_once(steps, room, alice, host)
    host.moderate(room, "kick", alice.id)
    steps.holds(
        "their kick of our user arrives", lambda: alice.membership(room, alice.id) == "leave"
    )
    steps.does("who joins again", lambda: alice.join(room, theirs.name))
    completes(steps, room, alice, host)
    steps.does("our user reads the whole history", lambda: page_back(alice, room))
    compare(section, ours, theirs, room)
    return section


def stopped(ours: OurServer, theirs: SynapseServer, gate: Gate, host: Client, room: str) -> Section:
    """The real server, and our own, are killed while a partial room is being completed."""
    section = Section("Both are killed amid the completion", _STOPPED.splitlines())
    steps = Steps(section)
    alice = ours.client("alice")
    make_moderators(room, host, alice.id)
    gate.hold(_STATE_IDS)
    steps.does("our user joins", lambda: alice.join(room, theirs.name))
    steps.holds("the state of the room is requested", gate.has_held)
    theirs.end(kill=True)
    for each in ("worker", "master"):
        ours.end(each, kill=True)
    gate.release()
    for each in ("master", "worker"):
        ours.start(each)
    _is_listed(section, ours, room)
    again = ours.client("alice")
    event = steps.does("our user talks", lambda: again.say(room, "while you were away"))
    theirs.start()
    steps.holds(
        "the message arrives once theirs is back", lambda: host.event(room, event or ""), LONG_S
    )
    both_ways(steps, room, again, host)
    completes(steps, room, again, host)
    steps.does("our user reads the whole history", lambda: page_back(again, room))
    compare(section, ours, theirs, room)
    return section


def another_serves(
    ours: OurServer,
    theirs: SynapseServer,
    second: SynapseServer,
    gate: Gate,
    host: Client,
    room: str,
) -> Section:
    """The server that a room was joined through is killed amid its completion, and another one serves."""
    section = Section("Another server serves", _AWAY.splitlines())
    steps = Steps(section)
    alice, vera = ours.client("alice"), second.register("vera")
    make_moderators(room, host, alice.id, vera.id)
    steps.does("a user of the second server joins", lambda: vera.join(room, theirs.name))
    steps.holds(
        "the second server completes the room", lambda: not second.has(_PARTIAL, room), LONG_S
    )
    gate.hold(_STATE_IDS)
    steps.does("our user joins through the first one", lambda: alice.join(room, theirs.name))
    steps.holds("the state of the room is requested", gate.has_held)
    theirs.end(kill=True)
    gate.release()
    talk(steps, room, "ours", alice, vera)
    change(steps, room, "the second server", vera, alice)
    completes(steps, room, alice, vera)
    asked = ours.resync(room).get("servers_asked", [])
    served = {each["destination"] for each in asked if each["code"] == "ok"}
    section.check("the second server served the state of the room", second.name in served)
    section.check("the first one did not", theirs.name not in served)
    compare(section, ours, second, room)
    theirs.start()
    topic = {"topic": "to one that was away"}
    alice.set_state(room, "m.room.topic", topic)
    steps.holds(
        "a topic of ours arrives at the first server once it is back",
        lambda: host.content_of(room, "m.room.topic") == topic,
        LONG_S,
    )
    are_alike(steps, room, alice, host)
    steps.does("our user reads the whole history", lambda: page_back(alice, room))
    compare(section, ours, theirs, room)
    return section


def completing(
    ours: OurServer, theirs: SynapseServer, second: SynapseServer, gate: Gate, members: int
) -> Section:
    """A real server is killed while it completes a room of ours.

    :param gate: in front of ours
    """
    section = Section(
        "A real server is killed while it completes a room of ours",
        _COMPLETING.format(members=members).splitlines(),
    )
    steps = Steps(section)
    alice, host, wanda = ours.client("alice"), theirs.register("harry"), second.register("wanda")
    room = alice.create_room("Large")
    make_moderators(room, alice, wanda.id)
    steps.does("a user of the first server joins", lambda: host.join(room, ours.name))
    steps.holds("and the first server completes the room", lambda: not theirs.has(_PARTIAL, room))
    theirs.add_members(room, range(members))
    steps.holds("all members arrive", lambda: len(alice.members(room)) == members + 2, LONG_S)
    gate.hold(_STATE_IDS)
    steps.does("a user of the second server joins", lambda: wanda.join(room, ours.name))
    steps.holds("it requests the state of the room from ours", gate.has_held)
    second.end(kill=True)
    section.check("the room is partial there", second.has(_PARTIAL, room))
    missed = alice.say(room, "while you were away")
    gate.release()
    second.start()
    steps.holds(
        "the second server completes the room", lambda: not second.has(_PARTIAL, room), LONG_S
    )
    steps.holds("a message that it missed arrives", lambda: wanda.event(room, missed), LONG_S)
    both_ways(steps, room, alice, wanda)
    are_alike(steps, room, alice, wanda)
    compare(section, ours, second, room)
    return section


def _is_listed(section: Section, ours: OurServer, room: str) -> None:
    section.check("the room is listed as partial", _is_partial(ours, room))


def _is_partial(ours: OurServer, room: str) -> bool:
    return room in synrepl("rooms", "resync", "-c", ours.config())

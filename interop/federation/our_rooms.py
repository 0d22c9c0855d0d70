"""Users of the real server in rooms of ours."""

from __future__ import annotations

from interop.federation import comparison
from interop.federation.client import Client
from interop.federation.exchanges import are_alike, at_once, both_ways, make_moderators
from interop.federation.our_server import OurServer
from interop.federation.steps import Steps
from interop.federation.synapse_server import SynapseServer
from interop.matrix_client import q
from interop.releases import CURRENT
from interop.report import Section

_STORY = """\
Users of the real server join rooms of ours: the first partially. Then both sides talk, change state, redact, kick and ban,
and what one side does is waited for at the other one."""

_OLD = """\
The same with a release that does not know partial joins, in a room of version 9."""

_UN_PARTIAL = "SELECT 1 FROM un_partial_stated_room_stream WHERE room_id = %s"
_PARTIAL = "SELECT 1 FROM partial_state_rooms WHERE room_id = %s"


def section(ours: OurServer, theirs: SynapseServer) -> Section:
    """Run it; its section of the report."""
    joins_partially = theirs.release is CURRENT
    title = f"Users of {theirs.release} in a room of ours"
    section = Section(title, _STORY.splitlines() if joins_partially else _OLD.splitlines())
    steps = Steps(section)
    alice, bob = ours.client("alice"), ours.client("bob")
    sam, tess, uma = (theirs.register(name) for name in ("sam", "tess", "uma"))
    # The newest version that both know.
    version = {} if joins_partially else {"room_version": "9"}
    room = alice.create_room("Ours", **version)
    bob.join(room)
    for number in range(5):
        alice.say(room, f"message {number}")
    steps.does("their user joins", lambda: sam.join(room, ours.name))
    if joins_partially:
        steps.holds(
            "it was a partial join, which the real server has completed",
            lambda: theirs.has(_UN_PARTIAL, room) and not theirs.has(_PARTIAL, room),
        )
    steps.does("a second one joins", lambda: tess.join(room, ours.name))
    levels = make_moderators(room, alice, sam.id)
    steps.holds("power levels that we set arrive there", lambda: sam.event(room, levels))
    both_ways(steps, room, alice, sam)
    _moderate(steps, room, ours, (alice, bob), (sam, tess))
    alice.moderate(room, "invite", uma.id)
    steps.holds("their user is invited", lambda: uma.is_invited(room))
    steps.does("and joins by the invite", lambda: uma.join(room))
    uma.ask("POST", f"/rooms/{q(room)}/leave", {})
    steps.holds("and leaves", lambda: alice.membership(room, uma.id) == "leave")
    at_once(steps, room, alice, sam)
    are_alike(steps, room, alice, sam)
    comparison.compare(section, ours, theirs, room)
    for who, one, other in (("ours", alice, sam), ("theirs", sam, alice)):
        _edus(steps, room, who, one, other)
    return section


def _moderate(
    steps: Steps,
    room: str,
    ours: OurServer,
    our_users: tuple[Client, Client],
    their_users: tuple[Client, Client],
) -> None:
    (alice, bob), (sam, tess) = our_users, their_users
    alice.moderate(room, "kick", tess.id)
    steps.holds("we kick their user", lambda: sam.membership(room, tess.id) == "leave")
    steps.does("who joins again", lambda: tess.join(room, ours.name))
    # Else we would ban somebody whose join comes afterwards: the verdicts would differ, and be right.
    steps.holds("which arrives", lambda: alice.membership(room, tess.id) == "join")
    alice.moderate(room, "ban", tess.id)
    steps.holds("we ban their user", lambda: sam.membership(room, tess.id) == "ban")
    answer = tess.answer("POST", f"/join/{q(room)}?via={q(ours.name)}", {})
    steps.refused("who cannot join again", 403, answer.status)
    for action, membership in (("kick", "leave"), ("ban", "ban"), ("unban", "leave")):
        sam.moderate(room, action, bob.id)
        steps.holds(
            f"their {action} of our user arrives",
            lambda expected=membership: alice.membership(room, bob.id) == expected,
        )


def _edus(steps: Steps, room: str, who: str, one: Client, other: Client) -> None:
    other.sync()
    one.ask("PUT", f"/rooms/{q(room)}/typing/{q(one.id)}", {"typing": True, "timeout": 30_000})
    steps.holds(f"a user of {who} types", lambda: other.hears(room, "m.typing", one.id))
    event = other.say(room, "to be read")
    steps.holds("a message to be read arrives", lambda: one.event(room, event))
    one.ask("POST", f"/rooms/{q(room)}/receipt/m.read/{q(event)}", {})
    steps.holds(f"a receipt of {who} arrives", lambda: other.hears(room, "m.receipt", event))
    path = f"/sendToDevice/org.example.told/{q(who)}"
    one.ask("PUT", path, {"messages": {other.id: {"*": {"from": who}}}})
    steps.holds(
        f"a message of {who} to devices arrives", lambda: other.gets_message("org.example.told")
    )

"""What is kept of an event whose sender was erased.

That is its redacted form, and what the authorisation of other events goes by, though redaction drops it in some room
versions: a server that judged later events by less than it judged earlier ones by would leave the room of all others.
None of it is what a user wrote: levels, keys, and the event that a redaction redacts.
"""

from __future__ import annotations

from collections.abc import Mapping

from synrepl.rooms import Event, canonical_json, redact

#: By event type, keys of the content that rules go by.
_KEPT: Mapping[str, tuple[str, ...]] = {
    "m.room.create": ("creator", "m.federate", "room_version"),
    "m.room.power_levels": ("invite", "notifications"),
    "m.room.join_rules": ("allow",),
    "m.room.member": ("join_authorised_via_users_server",),
    "m.room.third_party_invite": ("public_key", "public_keys"),
}


def erased_form(event: Event) -> bytes:
    """The JSON of an event of an erased user, in federation format. Its ID is the same."""
    kept = redact(event.fields, event.version)
    given = event.content
    content = kept["content"]
    content |= {key: given[key] for key in _KEPT.get(event.type, ()) if key in given}
    invite = given.get("third_party_invite")
    if event.type == "m.room.member" and isinstance(invite, Mapping) and "signed" in invite:
        content["third_party_invite"] = {"signed": invite["signed"]}
    if event.type == "m.room.redaction" and event.redacts is not None:
        where = content if event.version.redacts_in_content else kept
        where["redacts"] = event.redacts
    return canonical_json(kept)

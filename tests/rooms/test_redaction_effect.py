"""Whether a redaction is applied."""

from __future__ import annotations

from typing import Any
from unittest import TestCase

from synrepl.rooms.event import Event, event_of
from synrepl.rooms.redacting import redact
from synrepl.rooms.redaction_effect import RedactionReason, effect_of_redaction
from synrepl.rooms.state import StateKey
from synrepl.rooms.versions import V10, room_version
from tests.rooms.test_events import FIELDS
from tests.rooms.vector_files import lines

REASONS = {
    "power level": RedactionReason.POWER,
    "same server": RedactionReason.SAME_SERVER,
    "same server (checked when authorising)": RedactionReason.SAME_SERVER,
    "other server without the power level": RedactionReason.OTHER_SERVER,
    "redaction event rejected": RedactionReason.REFUSED,
    "the reference never redacts m.room.create": RedactionReason.CREATE,
}


class RedactionEffectVectors(TestCase):
    """The rows of ``redaction/effect``."""

    def test_effects_equal_those_of_the_vectors(self) -> None:
        for row in lines("redaction/effect.jsonl.gz"):
            with self.subTest(row["id"]):
                version = room_version(row["room_version"])
                redaction, target = (
                    event_of(row[name], version) for name in ("redaction", "target")
                )
                state = state_of(*(event_of(each, version) for each in row["state"]))
                got = effect_of_redaction(redaction, target, state)
                self.assertEqual(got.why, REASONS[row["why"]])
                self.assertEqual(got.redacted is not None, row["applied"])
                if got.redacted is not None:
                    wanted = {k: v for k, v in row["target_after"].items() if k != "unsigned"}
                    self.assertEqual(got.redacted.fields, wanted)
                    self.assertEqual(got.redacted.event_id, target.event_id)


def state_of(*events: Event) -> dict[StateKey, Event]:
    """A state of these events."""
    return {(each.type, each.state_key): each for each in events if each.state_key is not None}


CREATE = event_of(
    {**FIELDS, "type": "m.room.create", "state_key": "", "content": {"creator": "@a:b"}}, V10
)


class UnusualRedactions(TestCase):
    """What no server would ask, and others might send."""

    def why(self, target: Event, state: dict[StateKey, Event], **fields: Any) -> RedactionReason:
        redaction = {**FIELDS, "type": "m.room.redaction", "redacts": target.event_id, **fields}
        effect = effect_of_redaction(event_of(redaction, V10), target, state)
        self.assertEqual(effect.why.applies, effect.redacted is not None)
        return effect.why

    def test_does_not_apply_to_another_event_or_room(self) -> None:
        target = event_of(FIELDS, V10)
        self.assertIs(self.why(target, state_of(CREATE)), RedactionReason.POWER)
        self.assertIs(
            self.why(target, state_of(CREATE), redacts="$x"), RedactionReason.NOT_ITS_TARGET
        )
        self.assertIs(
            self.why(target, state_of(CREATE), redacts=None), RedactionReason.NOT_ITS_TARGET
        )
        self.assertIs(
            self.why(target, state_of(CREATE), room_id="!b:b"), RedactionReason.NOT_ITS_TARGET
        )

    def test_an_event_of_another_type_does_not_apply(self) -> None:
        target = event_of(FIELDS, V10)
        for kind in ("m.room.message", "m.room.redactions"):
            why = self.why(target, state_of(CREATE), type=kind)
            self.assertIs(why, RedactionReason.NOT_ITS_TARGET, kind)

    def test_does_not_apply_without_a_create_event(self) -> None:
        self.assertIs(self.why(event_of(FIELDS, V10), {}), RedactionReason.NO_CREATE)

    def test_senders_without_a_server_share_none(self) -> None:
        target = event_of({**FIELDS, "sender": "@x"}, V10)
        self.assertIs(self.why(target, state_of(CREATE), sender="@y"), RedactionReason.OTHER_SERVER)

    def test_the_redacted_event_keeps_its_id(self) -> None:
        target = event_of({**FIELDS, "unsigned": {"age": 1}}, V10)
        fields = {**FIELDS, "type": "m.room.redaction", "redacts": target.event_id}
        effect = effect_of_redaction(event_of(fields, V10), target, state_of(CREATE))
        assert effect.redacted is not None
        self.assertEqual(effect.redacted.event_id, target.event_id)
        self.assertEqual(effect.redacted.fields, redact(target.fields, V10))

"""The form in which events leave a database: what was redacted or erased stays behind."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from synrepl.rooms import BadEvent, UnknownRoomVersion, event_of, parse_event, redact, room_version
from synrepl.storage.rooms.maintenance.erased_form import erased_form


def in_shown_form(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of events with the redacted form of those that were redacted, or whose sender was erased.

    What cannot be parsed cannot be redacted, and is left out.
    """
    at = batch.schema.get_field_index
    redacted = batch.column(at("redacted")).to_pylist()
    erased = batch.column(at("erased")).to_pylist()
    hidden = [n for n, pair in enumerate(zip(redacted, erased, strict=True)) if True in pair]
    if not hidden:
        return batch
    number = at("json")
    versions = batch.column(at("room_version"))
    column: list[Any] = batch.column(number).to_pylist()
    for n in hidden:
        column[n] = shown_json(column[n], versions[n].as_py(), is_erased=bool(erased[n]))
    return batch.set_column(
        number, batch.schema.field(number), pa.array(column, batch.schema.field(number).type)
    )


def in_form(batch: pa.RecordBatch, forms: pa.Array) -> pa.RecordBatch:
    """A batch of whole events with the JSON of each in a form of its own.

    :param forms: null for the JSON as it is; otherwise a word and the room version, such as ``redacted 10`` or ``erased 10``
    """
    if forms.null_count == len(forms):
        return batch
    number = batch.schema.get_field_index("json")
    field = batch.schema.field(number)
    texts: list[Any] = batch.column(number).to_pylist()
    for n, form in enumerate(forms.to_pylist()):
        if form is not None:
            word, version = form.split(" ", 1)
            texts[n] = shown_text(texts[n], version, is_erased=word == "erased")
    return batch.set_column(number, field, pa.array(texts, field.type))


def shown_text(text: str | None, version: str | None, *, is_erased: bool = False) -> str | None:
    """As :func:`shown_json`, of JSON as text."""
    shown = shown_json(None if text is None else text.encode(), version, is_erased=is_erased)
    return None if shown is None else shown.decode()


def shown_json(raw: bytes | None, version: str | None, *, is_erased: bool) -> bytes | None:
    """The redacted form of an event, or what is kept of it if its sender was erased.

    :returns: None for what cannot be parsed
    """
    if raw is None:
        return None
    try:
        event = parse_event(raw, room_version(version))
        return (
            erased_form(event)
            if is_erased
            else event_of(redact(event.fields, event.version), event.version).raw
        )
    except (BadEvent, UnknownRoomVersion):
        return None

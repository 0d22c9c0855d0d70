"""How much disk rows of state groups take in a Synapse's database, estimated from the lengths of their texts.

Source: https://www.postgresql.org/docs/current/storage-page-layout.html
"""

from __future__ import annotations

#: A row without its columns: its header, and its pointer in the page.
_TUPLE = 28
#: An entry of an index without its columns.
_INDEX_TUPLE = 12
#: A number of 64 bits.
_BIGINT = 8
#: Indexes are filled to nine tenths.
_FILL = 0.9


def entry_bytes(kind: str, state_key: str, event_id: str) -> int:
    """The bytes of a row of ``state_groups_state``, with those of its index."""
    key = _text(kind) + _text(state_key)
    row = _aligned(_TUPLE + _BIGINT + key + _text(event_id) + _ROOM)
    return row + round(_aligned(_INDEX_TUPLE + _BIGINT + key) / _FILL)


#: The room's ID, which each row repeats.
_ROOM = 30


def _text(value: str) -> int:
    return 1 + len(value)


def _aligned(size: int) -> int:
    return -(-size // 8) * 8

"""Lag of a streaming query, computed from its progress reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from synrepl.core.tokens import Token
from synrepl.positions.vector import BadVector, PositionVector


def tokens_behind(source: Mapping[str, Any]) -> dict[str, Token]:
    """By stream, how many tokens were settled and not yet read when a batch ended.

    >>> from synrepl.pipeline import tokens_behind
    >>> read = {"events": {"linear": 100, "writers": {"master": 100}}}
    >>> settled = {"events": {"linear": 120, "writers": {"master": 120}}}
    >>> tokens_behind({"endOffset": {"streams": read}, "latestOffset": {"streams": settled}})
    {'events': 20}

    :param source: one of the ``sources`` of ``query.lastProgress``, of any kind
    :returns: empty for a source of another kind
    """
    end, latest = (_positions(source.get(key)) for key in ("endOffset", "latestOffset"))
    return {
        stream: max(0, at.linear - end[stream].linear) if stream in end else at.linear
        for stream, at in latest.items()
    }


def _positions(offset: object) -> dict[str, PositionVector]:
    try:
        value = json.loads(offset) if isinstance(offset, str) else offset
        streams = value["streams"] if isinstance(value, Mapping) else {}
        return {stream: PositionVector.from_json(at) for stream, at in streams.items()}
    except (ValueError, KeyError, AttributeError, BadVector):
        return {}

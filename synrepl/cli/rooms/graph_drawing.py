"""Pictures of an event graph: text for Graphviz, and SVG.

The SVG has a row per event, the oldest at the top, and a lane per branch, as ``git log --graph`` has:
an event graph is long and mostly narrow, so a line of text fits beside each event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.etree import ElementTree

from synrepl.cli.rooms.reading import flag_words
from synrepl.cli.terminal import printable
from synrepl.storage.rooms.reading.graph_slice import GraphEvent
from synrepl.storage.rooms.tables.events import EventFlags

#: Pixels between rows, between lanes, and at the edges.
_ROW, _LANE, _MARGIN = 22, 18, 16

#: Approximate width of a character of the labels, in pixels.
_CHARACTER = 7.3

_BAD = "#c0392b"
_ORDINARY = "#2c3e50"
_STATE = "#2980b9"
_PALETTE = ("#7f8c8d", "#8e44ad", "#16a085", "#d35400", "#27ae60", "#34495e")


class Edge(NamedTuple):
    """An edge from an event to one that it follows.

    :ivar child: row of the event
    :ivar parent: row of the one that it follows; None if that is not in the picture
    :ivar lane: where it runs between the two
    """

    child: int
    parent: int | None
    lane: int


class Layout(NamedTuple):
    """Where events and edges are.

    :ivar lanes: by row, the lane of the event
    :ivar width: number of lanes
    """

    lanes: Sequence[int]
    edges: Sequence[Edge]
    width: int


def lay_out(events: Sequence[GraphEvent]) -> Layout:
    """Give each event a lane.

    From the newest to the oldest: an event takes the first lane in which its followers await it, and frees
    the others. The first event that it follows inherits its lane; each other one is awaited in a lane where
    it is awaited already, or in the first free one.

    :param events: the oldest first
    """
    rows = {each.event_id: row for row, each in enumerate(events)}
    awaited: list[str | None] = []
    lanes = [0] * len(events)
    edges: list[Edge] = []
    width = 0
    for row in range(len(events) - 1, -1, -1):
        event = events[row]
        lane = _lane_of(awaited, event.event_id)
        awaited = [None if each == event.event_id else each for each in awaited]
        lanes[row] = lane
        for place, parent in enumerate(event.prev_event_ids):
            at = lane if place == 0 else _lane_of(awaited, parent)
            awaited[at] = parent
            edges.append(Edge(row, rows.get(parent), at))
        width = max(width, len(awaited), lane + 1)
        for at, each in enumerate(awaited):
            if each is not None and each not in rows:
                awaited[at] = None  # its edge ends just above the child
        while awaited and awaited[-1] is None:
            awaited.pop()
    return Layout(lanes, edges, width)


def _lane_of(awaited: list[str | None], wanted: str | None) -> int:
    """The first lane that awaits an event; else the first free one, made if there is none."""
    for choice in (wanted, None):
        if choice in awaited:
            return awaited.index(choice)
    awaited.append(None)
    return len(awaited) - 1


def svg(events: Sequence[GraphEvent]) -> bytes:
    """The graph as an SVG document."""
    layout = lay_out(events)
    labels = [_label(each) for each in events]
    text_x = _MARGIN + layout.width * _LANE
    longest = max(map(len, labels), default=0)
    size = {
        "width": str(int(text_x + longest * _CHARACTER + _MARGIN)),
        "height": str(2 * _MARGIN + max(len(events) - 1, 0) * _ROW),
    }
    root = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size})
    ElementTree.SubElement(root, "rect", {**size, "fill": "white"})
    for edge in layout.edges:
        attributes = {"d": _path(edge, layout.lanes), "fill": "none", "stroke-width": "1.5"}
        attributes["stroke"] = _PALETTE[edge.lane % len(_PALETTE)]
        if edge.parent is None:
            attributes["stroke-dasharray"] = "2 2"
        ElementTree.SubElement(root, "path", attributes)
    for row, (event, label) in enumerate(zip(events, labels, strict=True)):
        x, y = _point(row, layout.lanes[row])
        colour = _colour(event)
        dot = {"cx": f"{x}", "cy": f"{y}", "r": "5", "stroke": colour, "stroke-width": "2"}
        dot["fill"] = "white" if event.is_end else colour
        circle = ElementTree.SubElement(root, "circle", dot)
        ElementTree.SubElement(circle, "title").text = printable(event.event_id)
        where = {"x": f"{text_x}", "y": f"{y + 4}", "font-family": "monospace", "font-size": "12"}
        ElementTree.SubElement(root, "text", {**where, "fill": colour}).text = label
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def dot(events: Sequence[GraphEvent]) -> bytes:
    """The graph in the language of Graphviz."""
    known = {each.event_id for each in events}
    lines = ["digraph room {", "  rankdir=BT;", "  node [shape=box, fontname=monospace];"]
    for each in events:
        label = _quoted(_label(each), each.event_id)
        style = "bold" if each.is_end else "solid"
        lines.append(
            f'  {_quoted(each.event_id)} [label={label}, color="{_colour(each)}", style={style}];'
        )
        for parent in each.prev_event_ids:
            dashed = "" if parent in known else " [style=dashed]"
            lines.append(f"  {_quoted(each.event_id)} -> {_quoted(parent)}{dashed};")
    return "\n".join([*lines, "}", ""]).encode("utf-8", "replace")


def _point(row: int, lane: int) -> tuple[int, int]:
    return _MARGIN + lane * _LANE, _MARGIN + row * _ROW


def _path(edge: Edge, lanes: Sequence[int]) -> str:
    """From the child into the lane of the edge, up, and over to the parent; each turn takes a row."""
    x, y = _point(edge.child, lanes[edge.child])
    if edge.parent is None:
        return f"M {x} {y} L {_point(0, edge.lane)[0]} {y - _ROW // 2}"
    to_x, to_y = _point(edge.parent, lanes[edge.parent])
    if edge.parent == edge.child - 1:
        return f"M {x} {y} L {to_x} {to_y}"
    lane_x, below = _point(edge.child - 1, edge.lane)
    path = f"M {x} {y} L {lane_x} {below}"
    if below > to_y + _ROW:
        path += f" L {lane_x} {to_y + _ROW}"
    return f"{path} L {to_x} {to_y}"


def _label(event: GraphEvent) -> str:
    key = "" if event.state_key is None else f" {event.state_key!r}"
    flags = flag_words(event.flags)
    text = f"{event.topological} {event.type}{key} {event.sender}" + (
        f" ({flags})" if flags else ""
    )
    return printable(text)[:120]


def _colour(event: GraphEvent) -> str:
    if event.flags & (EventFlags.REJECTED | EventFlags.SOFT_FAILED):
        return _BAD
    return _STATE if event.changes_state else _ORDINARY


def _quoted(*lines: str) -> str:
    """A quoted string of Graphviz, which has escapes of its own."""
    escaped = (printable(each).replace("\\", "\\\\").replace('"', '\\"') for each in lines)
    return '"' + "\\n".join(escaped) + '"'

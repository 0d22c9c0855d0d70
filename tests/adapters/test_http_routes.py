"""Which route answers a request."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.routes import MethodNotAllowed, NoSuchPath, Route, Router

SEGMENTS = ("a", "b", "<x>", "<y>")


async def handle(request: HttpRequest) -> HttpAnswer:
    return json_answer({})


def router(*patterns: str) -> Router:
    return Router([Route("GET", pattern, handle) for pattern in patterns])


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern matches, by definition."""
    parts, segments = pattern.split("/"), path.split("/")
    return len(parts) == len(segments) and all(
        part.startswith("<") or part == segment
        for part, segment in zip(parts, segments, strict=True)
    )


class RoutesOfPaths(TestCase):
    """Routes found by a path."""

    def test_a_placeholder_takes_any_one_segment_decoded(self) -> None:
        found = router("/rooms/<room>/state/<type>/<key>").find(
            "GET", b"/rooms/%21a%2Fb/state/m.room.member/"
        )
        self.assertEqual(found.path, {"room": "!a/b", "type": "m.room.member", "key": ""})

    def test_a_name_counts_before_a_placeholder_whatever_the_order(self) -> None:
        for patterns in (("/rooms/<room>", "/rooms/events"), ("/rooms/events", "/rooms/<room>")):
            self.assertEqual(
                router(*patterns).find("GET", b"/rooms/events").route.pattern, "/rooms/events"
            )

    def test_goes_back_to_a_placeholder_when_a_name_leads_nowhere(self) -> None:
        found = router("/a/b", "/<x>/c").find("GET", b"/a/c")
        self.assertEqual((found.route.pattern, found.path), ("/<x>/c", {"x": "a"}))

    def test_goes_back_to_the_last_placeholder_first(self) -> None:
        for patterns in (("/a/b/x", "/a/<y>/c", "/<z>/b/c"), ("/<z>/b/c", "/a/<y>/c", "/a/b/x")):
            found = router(*patterns).find("GET", b"/a/b/c")
            self.assertEqual((found.route.pattern, found.path), ("/a/<y>/c", {"y": "b"}))

    def test_a_method_may_be_found_behind_a_placeholder(self) -> None:
        both = Router([Route("POST", "/rooms/events", handle), Route("GET", "/rooms/<x>", handle)])
        self.assertEqual(both.find("GET", b"/rooms/events").path, {"x": "events"})
        with self.assertRaises(MethodNotAllowed) as raised:
            both.find("PUT", b"/rooms/events")
        self.assertEqual(raised.exception.facts["allowed"], "POST, GET")

    def test_the_names_of_placeholders_are_those_of_the_route(self) -> None:
        both = router("/<one>/a", "/<other>/b")
        self.assertEqual(both.find("GET", b"/1/b").path, {"other": "1"})

    def test_a_path_with_very_many_segments_is_none(self) -> None:
        with self.assertRaises(NoSuchPath):
            router("/" + "/".join(["<x>"] * 40)).find("GET", b"/a" * 40)

    @given(
        st.lists(st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=3), max_size=8),
        st.lists(st.sampled_from(("a", "b", "c")), min_size=1, max_size=3),
    )
    def test_finds_a_route_exactly_if_a_pattern_matches(
        self, patterns: Sequence[Sequence[str]], path: Sequence[str]
    ) -> None:
        joined = ["/" + "/".join(pattern) for pattern in patterns]
        text = "/" + "/".join(path)
        expected = [pattern for pattern in joined if matches(pattern, text)]
        try:
            found = router(*joined).find("GET", text.encode())
        except NoSuchPath:
            self.assertEqual(expected, [])
        else:
            self.assertIn(found.route.pattern, expected)

    def test_many_routes_are_found_by_their_segments_alone(self) -> None:
        patterns = ["/" + "/".join(each) for each in product("abcdefgh", "ijklmnop", ("<x>",))]
        found = router(*patterns).find("GET", b"/h/p/1")
        self.assertEqual(found.route.pattern, "/h/p/<x>")

"""Ranges of streams over HTTP, and what an answer guarantees."""

from __future__ import annotations

import json
from typing import Any
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from synrepl.core.errors import InputError
from synrepl.services.serving import stream_updates
from synrepl.storage.store import DatabaseAway, Trimmed
from synrepl.streams.catalogue import UnknownStream
from tests.services.world import done, started


class UpdatesCase(TestCase):
    """A started master."""

    def setUp(self) -> None:
        self.world = started()

    def append(self, stream: str, body: object) -> None:
        done(self.world.intake.append(stream, json.dumps(body).encode()))

    def ask(self, stream: str, after: object, upto: object, **more: object) -> dict[str, Any]:
        query = {"from_token": after, "upto_token": upto, **more}
        texts = {name: str(value) for name, value in query.items()}
        answer = done(self.world.updates.answer(stream, texts))
        found: dict[str, Any] = json.loads(answer)
        self.assertEqual(found.keys(), {"updates", "upto_token", "limited"})
        return found


class AnsweringRequests(UpdatesCase):
    """What real servers answer too."""

    def test_returns_the_facts_of_a_range(self) -> None:
        self.append("jobs", [[1], [2, "x"], [3], [4]])
        self.assertEqual(
            self.ask("jobs", 1, 3),
            {
                "updates": [[2, [2, "x", None]], [3, [3, None, None]]],
                "upto_token": 3,
                "limited": False,
            },
        )

    def test_an_empty_range_returns_its_end(self) -> None:
        self.append("jobs", [[1], [2]])
        for after, upto in ((2, 2), (2, 1), (900, 800), (0, -5), (-7, -7)):
            self.assertEqual(
                self.ask("jobs", after, upto), {"updates": [], "upto_token": upto, "limited": False}
            )

    def test_a_negative_token_means_the_beginning(self) -> None:
        self.append("jobs", [[1]])
        self.assertEqual(len(self.ask("jobs", -1, 1)["updates"]), 1)

    def test_does_not_split_facts(self) -> None:
        self.append("jobs", {"facts": [[[1]], [[2], [3], [4]], [[5]]]})
        found = self.ask("jobs", 0, 3, limit=2)
        self.assertEqual([token for token, _ in found["updates"]], [1])
        self.assertEqual((found["upto_token"], found["limited"]), (1, True))
        found = self.ask("jobs", 1, 3, limit=2)
        self.assertEqual([token for token, _ in found["updates"]], [2, 2, 2])

    def test_returns_about_a_hundred_rows_by_default(self) -> None:
        self.append("jobs", [[n] for n in range(250)])
        self.assertEqual(len(self.ask("jobs", 0, 250)["updates"]), 100)
        self.assertEqual(len(self.ask("jobs", 0, 250, limit=240)["updates"]), 240)

    def test_returns_the_requested_row_shapes(self) -> None:
        self.append("receipts", [["!r", "m.read", "@u", "$e", "main", {}]])
        modern = ["!r", "m.read", "@u", "$e", {}]
        self.assertEqual(self.ask("receipts", 0, 1)["updates"], [[1, modern]])
        self.assertEqual(self.ask("receipts", 0, 1, rows="modern")["updates"], [[1, modern]])
        current = ["!r", "m.read", "@u", "$e", "main", {}]
        self.assertEqual(self.ask("receipts", 0, 1, rows="current")["updates"], [[1, current]])

    def test_returns_tokens_of_a_stream_that_counts_down(self) -> None:
        self.append("backfill", [["$e", "!r", "m.t", None, None, None]])
        ((token, _),) = self.ask("backfill", 0, 1)["updates"]
        self.assertEqual(token, 1)

    def test_refuses_invalid_parameters(self) -> None:
        for query in (
            {},
            {"from_token": "1"},
            {"from_token": "x", "upto_token": "1"},
            {"from_token": "1", "upto_token": ""},
            {"from_token": "1", "upto_token": "1.5"},
            {"from_token": "-", "upto_token": "1"},
            {"from_token": "--1", "upto_token": "1"},
            {"from_token": "0", "upto_token": str(2**63)},
            {"from_token": "0", "upto_token": "1", "limit": "0"},
            {"from_token": "0", "upto_token": "1", "limit": "10001"},
            {"from_token": "0", "upto_token": "1", "limit": "x"},
            {"from_token": "0", "upto_token": "1", "rows": "newest"},
            {"from_token": "0", "upto_token": "1", "writer": "a b"},
        ):
            with self.subTest(query), self.assertRaises(InputError):
                done(self.world.updates.answer("jobs", query))
        with self.assertRaises(UnknownStream):
            self.ask("nope", 0, 1)
        with self.assertRaises(stream_updates.StreamNotKnownThen):
            self.ask("sticky_events", 0, 1)
        self.assertEqual(self.ask("sticky_events", 0, 0, rows="current")["updates"], [])

    def test_returns_every_stream_if_row_shapes_are_requested(self) -> None:
        self.append("groups", [["+g:x", "@u:x", "membership", {}]])
        self.append("sticky_events", [["!r:x", "$e:x"]])
        for rows in ("modern", "current"):
            for stream, row in (
                ("groups", ["+g:x", "@u:x", "membership", {}]),
                ("sticky_events", ["!r:x", "$e:x"]),
            ):
                self.assertEqual(self.ask(stream, 0, 1, rows=rows)["updates"], [[1, row]])

    def test_fails_if_rows_are_trimmed_or_the_database_is_away(self) -> None:
        self.world = started(max_rows_per_stream=4)
        self.append("jobs", [[1], [2], [3], [4], [5]])
        with self.assertRaises(Trimmed):
            self.ask("jobs", 1, 5)
        self.assertEqual(len(self.ask("jobs", 2, 5)["updates"]), 3)
        self.world.store.away = True
        with self.assertRaises(DatabaseAway):
            self.ask("jobs", 2, 5)

    def test_skips_trimmed_rows_of_an_ephemeral_stream_for_a_real_worker(self) -> None:
        self.append("caches", [["f", [key], 1] for key in "abcd"])
        self.world.clock.advance(1)
        caches = self.world.catalogue["caches"]
        done(self.world.store.trim(caches, 2, 0, 10))
        found = self.ask("caches", 0, 3)
        self.assertEqual(
            found, {"updates": [[3, ["f", ["c"], 1]]], "upto_token": 3, "limited": False}
        )
        self.assertRegex(
            self.world.log.lines[-1][1],
            "^a real worker asks for caches above 0, which is trimmed up to 2",
        )
        for upto in (1, 2):
            found = self.ask("caches", 0, upto)
            self.assertEqual(found, {"updates": [], "upto_token": upto, "limited": False})
        for ours in ({"rows": "current"}, {"writer": "master"}):
            with self.assertRaises(Trimmed):
                self.ask("caches", 0, 3, **ours)


class BoundingAnswersByPositions(UpdatesCase):
    """``upto_token`` never passes a position."""

    def setUp(self) -> None:
        """Master has written 1 and 3; another writer has 2 reserved."""
        super().setUp()
        self.append("jobs", [[1]])
        self.other = self.world.reserved_by_other("jobs", 1)
        self.append("jobs", [[3]])
        state = self.world.announcer.states["jobs"]
        self.assertEqual((state.linear, state.positions["master"]), (1, 3))

    def test_returns_facts_of_a_writer_up_to_its_position(self) -> None:
        for writer, position, tokens in (("master", 3, [1, 3]), ("else", 0, [])):
            found = self.ask("jobs", 0, 1_000, writer=writer)
            self.assertEqual([token for token, _ in found["updates"]], tokens)
            self.assertEqual((found["upto_token"], found["limited"]), (position, False))

    def test_returns_facts_of_all_writers_up_to_the_linear_position(self) -> None:
        found = self.ask("jobs", 0, 1_000)
        self.assertEqual([token for token, _ in found["updates"]], [1])
        self.assertEqual((found["upto_token"], found["limited"]), (1, False))

    def test_marks_an_answer_below_a_writers_position_as_limited(self) -> None:
        """A real worker: ``limited: false`` would make it skip what comes later."""
        for after, tokens in ((0, [1]), (1, [])):
            answers: list[bytes] = []
            query = {"from_token": str(after), "upto_token": "3"}
            asked = Deferred.fromCoroutine(self.world.updates.answer("jobs", query))
            asked.addCallback(answers.append)
            self.assertEqual(answers, [], "it is to wait a little")
            self.world.clock.advance(stream_updates.PAUSE_S)
            found = json.loads(answers[0])
            self.assertEqual([token for token, _ in found["updates"]], tokens)
            self.assertEqual((found["upto_token"], found["limited"]), (1, True))

    def test_answers_in_full_if_the_linear_position_advances_meanwhile(self) -> None:
        answers: list[bytes] = []
        query = {"from_token": "0", "upto_token": "3"}
        Deferred.fromCoroutine(self.world.updates.answer("jobs", query)).addCallback(answers.append)
        done(self.other.release(self.world.catalogue["jobs"], [2]))
        self.world.announcer.wake("jobs")
        self.world.clock.advance(stream_updates.PAUSE_S)
        found = json.loads(answers[0])
        self.assertEqual([token for token, _ in found["updates"]], [1, 3])
        self.assertEqual((found["upto_token"], found["limited"]), (3, False))


class FetchingPageByPage(UpdatesCase):
    """Going on from ``upto_token`` until it is not limited gives every row once, in order."""

    @given(st.lists(st.integers(1, 5), max_size=12), st.integers(1, 8), st.data())
    @settings(max_examples=60, deadline=None)
    def test_pages_together_contain_every_fact(
        self, sizes: list[int], limit: int, data: st.DataObject
    ) -> None:
        self.world = started()
        if sizes:
            self.append("jobs", {"facts": [[[n]] * size for n, size in enumerate(sizes, 1)]})
        after = data.draw(st.integers(0, len(sizes)))
        upto = data.draw(st.integers(0, len(sizes)))
        got, at, more = [], after, True
        while more:
            found = self.ask("jobs", at, upto, limit=limit)
            got += [token for token, _ in found["updates"]]
            more = found["limited"]
            self.assertTrue(not more or found["upto_token"] > at, "no progress")
            at = found["upto_token"]
        expected = [n for n in range(after + 1, upto + 1) for _ in range(sizes[n - 1])]
        self.assertEqual(got, expected)

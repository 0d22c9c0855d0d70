"""JSON rows in, tokens out; nothing is written unless every row is valid."""

from __future__ import annotations

import json
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.core.errors import InputError
from synrepl.core.names import BadKey
from synrepl.services.writing import intake
from synrepl.services.writing.intake import BadBody, BadFact, TooManyRows
from synrepl.services.writing.stream_writer import EmptyAppend, NotAWriter, WriterAway
from synrepl.storage.store import DatabaseAway, KeyReused
from synrepl.streams.catalogue import UnknownStream
from tests.services.world import MasterWorld, done, started


class IntakeCase(TestCase):
    """A started master."""

    def setUp(self) -> None:
        self.world = started()

    def append(self, stream: str, body: object, key: str | None = None) -> dict[str, object]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return done(self.world.intake.append(stream, data, key)).to_json()

    def refused(self, body: object, stream: str = "jobs", key: str | None = None) -> InputError:
        with self.assertRaises(InputError) as caught:
            self.append(stream, body, key)
        self.assertEqual(self.world.last("jobs"), 0, "a token was taken")
        self.assertEqual(self.world.facts("jobs"), [], "something was written")
        return caught.exception


class AppendingRows(IntakeCase):
    """Accepted bodies, and their answers."""

    def test_appends_each_row_as_a_fact(self) -> None:
        for body in ([[1], [2, "x"]], {"rows": [[1], [2, "x"]]}):
            world = self.world = started()
            self.assertEqual(
                self.append("jobs", body), {"stream": "jobs", "writer": "master", "ids": [1, 2]}
            )
            self.assertEqual([len(fact.rows) for fact in world.facts("jobs")], [1, 1])
            self.assertEqual(world.announcer.states["jobs"].linear, 2)

    def test_appends_facts_of_several_rows(self) -> None:
        answer = self.append("jobs", {"facts": [[[1], [2]], [[3]]]})
        self.assertEqual(answer["ids"], [1, 2])
        self.assertEqual([len(fact.rows) for fact in self.world.facts("jobs")], [2, 1])
        self.assertEqual((self.world.intake.facts["jobs"], self.world.intake.rows["jobs"]), (2, 3))

    def test_appends_to_a_stream_with_kinds_of_rows(self) -> None:
        self.append("events", [["state-all", ["!r"]]])
        (fact,) = self.world.facts("events")
        self.assertEqual(type(fact.rows[0]).__name__, "AllStateRow")

    def test_returns_negative_ids_of_a_stream_that_counts_down(self) -> None:
        row = ["$e", "!r", "m.t", None, None, None]
        self.assertEqual(self.append("backfill", [row, row])["ids"], [-1, -2])

    def test_replays_the_answer_to_a_repeated_key(self) -> None:
        first = self.append("jobs", [[1]], "k")
        self.assertNotIn("replayed", first)
        self.assertEqual(self.append("jobs", [[1]], "k"), {**first, "replayed": True})
        self.assertEqual(len(self.world.facts("jobs")), 1)
        self.assertEqual(self.world.intake.facts["jobs"], 1)
        with self.assertRaises(KeyReused):
            self.append("jobs", [[2]], "k")
        self.assertEqual(
            self.world.intake.outcomes,
            {("jobs", "ok"): 1, ("jobs", "replayed"): 1, ("jobs", "KeyReused"): 1},
        )


class RefusingBodies(IntakeCase):
    """Bad input has a defined refusal, with the path from the body's beginning."""

    def test_reports_the_path_of_an_invalid_value(self) -> None:
        good = [1, "n", {}]
        for body, path in (
            ([good, good, good, ["x"]], "$[3][0]"),
            ([good, [1, 5]], "$[1][1]"),
            ({"rows": [good, [True]]}, "$.rows[1][0]"),
            ({"facts": [[good], [good, [2**63]]]}, "$.facts[1][1][0]"),
            ([good, 7], "$[1]"),
            ([[1, "n", {}, 4]], "$[0]"),
            (b'[[1, "\\u0000"]]', "$[0][1]"),
            (b'[[1, null, {"a": ["\\u0000"]}]]', "$[0][2].a[0]"),
        ):
            with self.subTest(body):
                error = self.refused(body)
                self.assertIsInstance(error, BadFact)
                self.assertEqual(error.facts["path"], path)
                self.assertIn(path, str(error))

    def test_reports_the_path_within_a_row_that_has_a_kind(self) -> None:
        error = self.refused([["state-all", ["!r"]], ["state-all", [7]]], "events")
        self.assertEqual(error.facts["path"], "$[1][1][0]")

    def test_reports_the_path_of_a_lone_surrogate(self) -> None:
        error = self.refused(b'[[1], [1, "\\ud800"]]')
        self.assertEqual(error.facts["path"], "$[1][1]")
        self.assertIn("surrogate", str(error))

    def test_refuses_malformed_bodies(self) -> None:
        for body in (
            b"", b"{", b"[", b"nope", b"[[1]] x", b"\xff\xfe", b"[" * 100_000, b"7", b'"x"', b"null",
            b"{}", b'{"row": []}', b'{"rows": [[1]], "facts": [[[1]]]}', b'{"rows": 1}',
            b'{"facts": [1]}', b'{"facts": [[]]}', b'{"rows": null}', b"[NaN]",
        ):  # fmt: skip
            with self.subTest(body[:40]):
                self.assertIsInstance(self.refused(body), BadBody)

    def test_refuses_an_empty_append(self) -> None:
        bodies: tuple[object, ...] = ([], {"rows": []}, {"facts": []})
        for body in bodies:
            self.assertIsInstance(self.refused(body), EmptyAppend)

    def test_refuses_too_many_rows(self) -> None:
        self.addCleanup(setattr, intake, "MAX_ROWS", intake.MAX_ROWS)
        intake.MAX_ROWS = 3
        for body in ([[1]] * 4, {"rows": [[1]] * 4}, {"facts": [[[1], [2]], [[3], [4]]]}):
            self.assertIsInstance(self.refused(body), TooManyRows)
        self.append("jobs", [[1]] * 3)

    def test_refuses_invalid_keys(self) -> None:
        for key in ("", "a b", "x" * 256, "é", "a\n"):
            self.assertIsInstance(self.refused([[1]], key=key), BadKey)

    def test_refuses_unknown_streams_and_those_of_other_writers(self) -> None:
        self.assertIsInstance(self.refused([[1]], "nope"), UnknownStream)
        with self.assertRaises(NotAWriter):
            self.append("pushers", [["@u", "a", "k", False]])
        self.assertNotIn(("nope", "UnknownStream"), self.world.intake.outcomes)

    def test_raises_if_the_database_is_away_or_the_lease_is_not_held(self) -> None:
        self.world.store.away = True
        with self.assertRaises(DatabaseAway):
            self.append("jobs", [[1]])
        self.world = MasterWorld()
        with self.assertRaises(WriterAway):
            self.append("jobs", [[1]])


class FuzzingBodies(IntakeCase):
    """Whatever comes, it is appended or refused."""

    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["rows", "facts", "x"]), inner, max_size=2)
        ),
        max_leaves=8,
    )

    @given(
        st.binary(max_size=40)
        | json_values.map(lambda value: json.dumps(value).encode())
        | st.lists(json_values).map(lambda value: json.dumps([value]).encode())
    )
    @settings(max_examples=150, deadline=None)
    def test_raises_only_documented_errors(self, body: bytes) -> None:
        before = len(self.world.facts("jobs"))
        try:
            ids = self.append("jobs", body)["ids"]
        except InputError as error:
            json.dumps(error.facts.get("path"))
            ids = []
        assert isinstance(ids, list)
        self.assertEqual(len(self.world.facts("jobs")), before + len(ids))

"""Position vectors: a semilattice with a strict, one-word spelling."""

from __future__ import annotations

import json
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.core.tokens import MAX_TOKEN
from synrepl.positions.vector import MAX_WRITERS, BadVector, PositionVector

writers = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,20}", fullmatch=True)
few_writers = st.sampled_from(["main", "w1", "w2", "w.3"])
tokens = st.integers(0, MAX_TOKEN)
vectors = st.builds(
    PositionVector, st.dictionaries(few_writers, st.integers(0, 9)), st.integers(0, 9)
)
any_vectors = st.builds(PositionVector, st.dictionaries(writers, tokens), tokens)
quick = settings(max_examples=60, deadline=None)


class VectorLaws(TestCase):
    @quick
    @given(vectors, vectors, vectors)
    def test_merge_is_a_join(self, a: PositionVector, b: PositionVector, c: PositionVector) -> None:
        self.assertEqual(a.merge(a), a)
        self.assertEqual(a.merge(b), b.merge(a))
        self.assertEqual(hash(a.merge(b)), hash(b.merge(a)))
        self.assertEqual(a.merge(b).merge(c), a.merge(b.merge(c)))
        self.assertTrue(a.merge(b).covers(a))

    @quick
    @given(vectors, vectors, vectors)
    def test_covers_is_an_order(
        self, a: PositionVector, b: PositionVector, c: PositionVector
    ) -> None:
        self.assertTrue(a.covers(a))
        if a.covers(b) and b.covers(c):
            self.assertTrue(a.covers(c))
        if a.covers(b):
            self.assertTrue(all(a[writer] >= b[writer] for writer in ("main", "w1", "unnamed")))
            self.assertTrue(a.covers(a.merge(b)))

    @quick
    @given(vectors, few_writers, st.integers(0, 9))
    def test_advance_never_goes_back(self, a: PositionVector, writer: str, token: int) -> None:
        further = a.advance(writer, token)
        self.assertTrue(further.covers(a))
        self.assertEqual(further[writer], max(a[writer], token))
        self.assertEqual(further.merge(a), further)
        self.assertEqual(a.advance_linear(token).linear, max(a.linear, token))

    @quick
    @given(any_vectors)
    def test_a_vector_survives_encoding_and_decoding(self, a: PositionVector) -> None:
        self.assertEqual(PositionVector.parse(str(a)), a)
        self.assertEqual(PositionVector.from_json(json.loads(json.dumps(a.to_json()))), a)
        self.assertRegex(str(a), r"\A[A-Za-z0-9_.:~-]+\Z")


class VectorTests(TestCase):
    def test_linear_holds_for_every_writer(self) -> None:
        vector = PositionVector({"w1": 5, "w2": 15}, linear=10)
        self.assertEqual((vector["w1"], vector["w2"], vector["w3"]), (10, 15, 10))
        self.assertEqual(vector.highest, 15)
        self.assertEqual(PositionVector().highest, 0)
        self.assertFalse(PositionVector({"w1": 99}).covers(PositionVector(linear=1)))

    def test_has_a_text_form(self) -> None:
        vector = PositionVector({"writer2": 15, "writer1": 12}, linear=10)
        self.assertEqual(str(vector), "10~writer1.12~writer2.15")
        self.assertEqual(PositionVector.parse("7"), PositionVector(linear=7))

    def test_a_vector_cannot_be_changed(self) -> None:
        given_writers = {"w1": 1}
        vector = PositionVector(given_writers)
        given_writers["w1"] = 2
        self.assertEqual(vector["w1"], 1)

    def test_refuses_bad_text(self) -> None:
        for text, reason in {
            "": "whole number",
            "x": "whole number",
            "-1": "whole number",
            "1~": "is not a writer",
            "1~w1": "is not a writer",
            "1~w1.": "whole number",
            "1~w1.99999999999999999999": "whole number",
            "1~.5": "not a valid name",
            "1~w 1.5": "not a valid name",
            "1~w1.5~w1.5": "twice",
            "1" + "~w1.5" * (MAX_WRITERS + 1): "more than",
        }.items():
            with self.assertRaisesRegex(BadVector, reason, msg=text[:20]):
                PositionVector.parse(text)

    def test_refuses_bad_json(self) -> None:
        for value, reason in [
            (None, "an object"),
            ([], "an object"),
            ({"linear": 1}, "an object"),
            ({"linear": 1, "writers": {}, "more": 1}, "an object"),
            ({"linear": 1, "writers": []}, "must be an object"),
            ({"linear": True, "writers": {}}, "whole number"),
            ({"linear": 1.0, "writers": {}}, "whole number"),
            ({"linear": 10**5000, "writers": {}}, "whole number"),
            ({"linear": 1, "writers": {"w": -1}}, "whole number"),
            ({"linear": 1, "writers": {"w": "1"}}, "whole number"),
            ({"linear": 1, "writers": {"": 1}}, "not a valid name"),
            ({"linear": 1, "writers": {1: 1}}, "must be text"),
            ({"linear": 1, "writers": {f"w{n}": 1 for n in range(MAX_WRITERS + 1)}}, "more than"),
        ]:
            with self.assertRaisesRegex(BadVector, reason):
                PositionVector.from_json(value)

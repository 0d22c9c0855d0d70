"""The order in which the events of a large answer are taken in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twisted.trial.unittest import SynchronousTestCase

from synrepl.services.federation.answered_parts import AnsweredPart, causes_first


class NumberedAnswer:
    """An answer whose arrays are read one at a time, from their beginning."""

    def __init__(self, state: Sequence[bytes], chain: Sequence[bytes]) -> None:
        self._arrays = {"state": state, "chain": chain}
        self._reads = 0

    def state(self) -> Iterator[bytes]:
        return self._read("state")

    def auth_chain(self) -> Iterator[bytes]:
        return self._read("chain")

    def _read(self, name: str) -> Iterator[bytes]:
        self._reads += 1
        this = self._reads
        for each in self._arrays[name]:
            assert this == self._reads, "another array is being read"
            yield each


class PartsOfAnAnswer(SynchronousTestCase):
    def test_the_chain_comes_after_the_beginning_of_the_state(self) -> None:
        answer = NumberedAnswer([b"s1", b"s2", b"s3", b"s4", b"s5"], [b"c1", b"c2", b"c3"])
        self.assertEqual(
            list(causes_first(answer, 2)),
            [
                AnsweredPart(True, [b"s1", b"s2"]),
                AnsweredPart(False, [b"c1", b"c2"]),
                AnsweredPart(False, [b"c3"]),
                AnsweredPart(True, [b"s3", b"s4"]),
                AnsweredPart(True, [b"s5"]),
            ],
        )

    def test_small_answers(self) -> None:
        for state, chain, parts in (
            ([], [], []),
            ([b"s"], [], [(True, [b"s"])]),
            ([], [b"c"], [(False, [b"c"])]),
            ([b"s"], [b"c"], [(True, [b"s"]), (False, [b"c"])]),
        ):
            self.assertEqual(list(causes_first(NumberedAnswer(state, chain), 2)), parts)

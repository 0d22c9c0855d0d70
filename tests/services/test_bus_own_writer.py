"""A process announces its own writer from settled tokens, in the order of positions."""

from __future__ import annotations

from unittest import TestCase

from synrepl.core.tokens import Token
from synrepl.positions.ledger import Ledger
from synrepl.services.bus.own_writer import OwnWriter
from synrepl.streams.definition import Fact
from tests.services.manual_pubsub import NOTES, RecordingMoves


class AnnouncingTheOwnWriter(TestCase):
    def setUp(self) -> None:
        self.moves = RecordingMoves()
        self.own = OwnWriter(self.moves)
        self.begin(4)

    def begin(self, position: Token) -> None:
        """The writer's name is taken."""
        self.ledger = Ledger(position)
        self.own.lease_acquired(NOTES, "one", self.ledger)

    def reserve(self, *tokens: Token) -> None:
        self.ledger.reserved(self.ledger.request(), tokens)

    def settle(self, *tokens: Token, committed: bool = True) -> None:
        self.ledger.settle(tokens)
        facts = [Fact(token, "one", ()) for token in tokens] if committed else []
        self.own.settled(NOTES, tokens, facts)

    def test_a_fact_waits_for_lower_tokens_to_settle(self) -> None:
        self.reserve(5, 6, 7)
        self.settle(7)
        self.assertEqual(self.moves.kept, [])
        self.settle(5)
        self.settle(6, committed=False)
        self.assertEqual(self.moves.kept, [(4, 5, [5]), (5, 7, [7])])

    def test_reports_the_announced_position(self) -> None:
        self.reserve(5, 6)
        self.settle(6)
        self.assertEqual([announced.position for announced in self.own.announced_positions()], [4])
        self.settle(5)
        self.assertEqual(
            [announced[1:3] for announced in self.own.announced_positions()], [("one", 6)]
        )

    def test_announces_recovered_facts_once_after_acquiring_the_lease_again(self) -> None:
        """Facts are found that were committed; one of them had been said."""
        self.reserve(5)
        self.settle(5)
        self.begin(7)
        self.own.recovered(NOTES, [Fact(token, "one", ()) for token in (5, 6)])
        self.assertEqual(self.moves.kept, [(4, 5, [5]), (5, 7, [6])])
        self.reserve(8)
        self.settle(8)
        self.assertEqual(self.moves.kept[-1], (7, 8, [8]))

    def test_does_not_announce_facts_whose_commit_is_in_doubt(self) -> None:
        self.reserve(5)
        self.own.outcome_unknown(NOTES, [])
        self.assertEqual(self.moves.kept, [])

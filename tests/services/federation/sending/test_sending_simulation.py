"""Random runs of servers that send to each other; ``python -m simulator --sending`` plays more."""

from __future__ import annotations

from simulator.federation.sending_simulation import simulate_sending
from tests.services.federation.sending.sending_case import SendingCase


class SimulatedSendingTest(SendingCase):
    """No rule is broken."""

    timeout = 600

    def test_seeds(self) -> None:
        for seed in range(3):
            with self.subTest(seed=seed):
                self.assertEqual(simulate_sending(seed, steps=15).violations, [])

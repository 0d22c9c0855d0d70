"""``python -m simulator``: replay one seed, or run many.

With ``--rooms`` or ``--clients``, in a real PostgreSQL; with ``--sending``, of events and EDUs that a server sends to others;
with ``--joins``, of rooms of other servers that ours join and complete.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from simulator.clients.simulation import CLIENT_STEPS, simulate_clients
from simulator.federation.joins_simulation import JOIN_STEPS, simulate_joins
from simulator.federation.sending_simulation import SENDING_STEPS, simulate_sending
from simulator.interfaces import ServiceFactory
from simulator.rooms.simulation import ROOM_STEPS, simulate_rooms
from simulator.simulation import STEPS, Result, simulate

#: Runs one seed.
Simulate = Callable[[int], Result]

#: The default service factory.
PRODUCT = "simulator.product:Product"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit status is 0 when no rule was broken, 1 when one was, 2 for wrong arguments."""
    parser = _parser()
    options = parser.parse_args(arguments)
    kinds = (options.rooms, options.clients, options.sending, options.joins)
    if options.lose_commits and any(kinds):
        parser.error(
            "--lose-commits is for simulations without --rooms, --clients, --sending and --joins"
        )
    run = _deployment(options)
    if options.rooms:
        run = _in_postgres(options, simulate_rooms, ROOM_STEPS)
    elif options.clients:
        run = _in_postgres(options, simulate_clients, CLIENT_STEPS)
    elif options.sending:
        run = _in_postgres(options, simulate_sending, SENDING_STEPS)
    elif options.joins:
        run = _in_postgres(options, simulate_joins, JOIN_STEPS)
    return _replay(run(options.seed), options) if options.seeds is None else _many(run, options)


def _deployment(options: argparse.Namespace) -> Simulate:
    return partial(
        simulate,
        service_factory=options.service_factory(),
        steps=STEPS if options.steps is None else options.steps,
        lose_commits=options.lose_commits,
    )


def _in_postgres(
    options: argparse.Namespace, simulation: Callable[[int, int], Result], steps: int
) -> Simulate:
    return lambda seed: simulation(seed, steps if options.steps is None else options.steps)


def _replay(result: Result, options: argparse.Namespace) -> int:
    for line in result.transcript.lines():
        if options.verbose or result.violations:
            print(line)
    print(", ".join(f"{count} {name}" for name, count in result.counts.items()))
    for violation in result.violations:
        print(f"BROKEN {violation}")
    print(f"seed {result.seed}: {'broken' if result.violations else 'all rules hold'}")
    return 1 if result.violations else 0


def _many(run: Simulate, options: argparse.Namespace) -> int:
    first, last = options.seeds
    totals: Counter[str] = Counter()
    broken = 0
    began = time.process_time()
    for seed in range(first, last + 1):
        result = run(seed)
        totals.update(result.counts)
        if result.violations:
            broken += 1
            print(f"seed {seed}: {result.violations[0]}")
    spent = time.process_time() - began
    seeds = last - first + 1
    print(", ".join(f"{count} {name}" for name, count in totals.items()))
    print(f"{seeds} seeds, {broken} broken, {seeds / spent:.1f} seeds per CPU second")
    return 1 if broken else 0


def _range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)\.\.(\d+)", text, re.ASCII)
    if found is None or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range: write 1..2000")
    return int(found[1]), int(found[2])


def _service_factory(text: str) -> type[ServiceFactory]:
    module, _, name = text.partition(":")
    try:
        found: type[ServiceFactory] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no service factory, write module:Class: {error}"
        ) from None
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m simulator", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="replay this seed and print its transcript")
    which.add_argument("--seeds", type=_range, metavar="A..B", help="run all seeds of this range")
    parser.add_argument(
        "--steps",
        type=int,
        help=f"steps per run ({STEPS}; with --rooms, {ROOM_STEPS}; with --clients, {CLIENT_STEPS};"
        f" with --sending, {SENDING_STEPS}; with --joins, {JOIN_STEPS})",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--clients",
        action="store_true",
        help="let clients come and go between processes in a real PostgreSQL, which is started",
    )
    where.add_argument(
        "--rooms",
        action="store_true",
        help="let processes persist and maintain random rooms in a real PostgreSQL, which is started",
    )
    where.add_argument(
        "--sending",
        action="store_true",
        help="let a server with a real PostgreSQL, which is started, send events and EDUs to others that fail",
    )
    where.add_argument(
        "--joins",
        action="store_true",
        help="let servers with a real PostgreSQL, which is started, join rooms of others that lie and vanish",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="print the transcript even when no rule was broken"
    )
    parser.add_argument(
        "--lose-commits",
        action="store_true",
        help="let the database fail over to a standby that lacks commits, in runs without caches",
    )
    parser.add_argument(
        "--service-factory",
        type=_service_factory,
        default=PRODUCT,
        metavar="MODULE:CLASS",
        help="the class that makes the services (%(default)s)",
    )
    return parser


def _with_fixed_hashes() -> None:
    """Start again with a fixed seed of string hashes, unless there is one.

    Sets of strings have an order that goes by it, and the order in which a room is read may follow that of a set. So
    a seed of a simulation repeats itself only with the same ``PYTHONHASHSEED``.
    """
    if os.environ.get("PYTHONHASHSEED", "random") == "random":
        command = [sys.executable, "-m", "simulator", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606


if __name__ == "__main__":
    _with_fixed_hashes()
    sys.exit(main())

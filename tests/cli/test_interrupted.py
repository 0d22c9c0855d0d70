"""Signals that end a command: silently, and whatever the command is doing."""

from __future__ import annotations

import signal
import subprocess
import sys
from textwrap import dedent
from unittest import TestCase

#: Sends itself a signal within a finalizer, then waits for its own end, or comes to an end by itself.
SCRIPT = """
import os, sys, threading, weakref
from synrepl.cli.terminal import graceful_exit

class Collected:
    pass

with graceful_exit():
    collected = Collected()
    finalizer = weakref.ref(collected, lambda _: os.kill(os.getpid(), int(sys.argv[1])))
    del collected
    threading.Event().wait(float(sys.argv[2]))
print("went on")
threading.Event().wait(1)
"""


class DuringAFinalizer(TestCase):
    def run_with(self, number: int, wait_s: float = 30) -> tuple[int, str, str]:
        """Exit status and output of the script."""
        done = subprocess.run(
            [sys.executable, "-c", dedent(SCRIPT), str(int(number)), str(wait_s)],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def test_sigterm_ends_the_command_silently(self) -> None:
        self.assertEqual(self.run_with(signal.SIGTERM), (-signal.SIGTERM, "", ""))

    def test_the_interrupt_key_ends_the_command_silently(self) -> None:
        self.assertEqual(self.run_with(signal.SIGINT), (130, "", ""))

    def test_a_command_that_ends_meanwhile_ends_alike(self) -> None:
        self.assertEqual(self.run_with(signal.SIGTERM, 0), (-signal.SIGTERM, "", ""))
        self.assertEqual(self.run_with(signal.SIGINT, 0), (130, "", ""))

    def test_sigterm_is_an_interrupt_for_what_cleans_up_after_one(self) -> None:
        script = """
            import os, signal, threading
            from synrepl.cli.terminal import graceful_exit

            with graceful_exit():
                try:
                    os.kill(os.getpid(), signal.SIGTERM)
                    threading.Event().wait(30)
                except KeyboardInterrupt:  # as Py4J does
                    print("given up")
                    raise
        """
        done = subprocess.run(
            [sys.executable, "-c", dedent(script)], capture_output=True, text=True, check=False
        )
        self.assertEqual((done.returncode, done.stdout), (-signal.SIGTERM, "given up\n"))

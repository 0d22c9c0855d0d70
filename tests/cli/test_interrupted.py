"""Signals that end a command: silently, and whatever the command is doing."""

from __future__ import annotations

import signal
import subprocess
import sys
from textwrap import dedent
from unittest import TestCase

#: Sends itself a signal within a finalizer, then waits for its own end.
SCRIPT = """
import os, sys, threading, weakref
from synrepl.cli.terminal import graceful_exit

class Collected:
    pass

with graceful_exit():
    collected = Collected()
    finalizer = weakref.ref(collected, lambda _: os.kill(os.getpid(), int(sys.argv[1])))
    del collected
    threading.Event().wait(30)
print("went on")
"""


class DuringAFinalizer(TestCase):
    def run_with(self, number: int) -> tuple[int, str, str]:
        """Exit status and output of the script."""
        done = subprocess.run(
            [sys.executable, "-c", dedent(SCRIPT), str(int(number))],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def test_sigterm_ends_the_command_silently(self) -> None:
        self.assertEqual(self.run_with(signal.SIGTERM), (-signal.SIGTERM, "", ""))

    def test_the_interrupt_key_ends_the_command_silently(self) -> None:
        self.assertEqual(self.run_with(signal.SIGINT), (130, "", ""))

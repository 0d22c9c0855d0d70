"""Tests of ``synrepl.streams``: no I/O, no reactor."""

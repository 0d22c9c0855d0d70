"""Tests of ``synrepl.wire``: no I/O, no reactor."""

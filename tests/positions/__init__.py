"""Tests of ``synrepl.positions``: pure arithmetic."""

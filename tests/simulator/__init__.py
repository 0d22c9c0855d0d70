"""Tests of the simulator and of its checkers."""

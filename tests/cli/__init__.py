"""Tests of the sub-commands."""

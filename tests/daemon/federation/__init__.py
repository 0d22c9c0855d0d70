"""Tests of the listener for other servers."""

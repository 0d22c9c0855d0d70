"""Tests of what is shared with other servers."""

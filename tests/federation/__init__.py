"""Tests of the server-server protocol."""

"""Tests of :mod:`synrepl.services.rooms.timelines`."""

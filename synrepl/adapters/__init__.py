"""Thin shells around Twisted and the drivers."""

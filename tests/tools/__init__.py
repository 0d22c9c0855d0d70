"""Tests of tap, judge, watch, doctor and audit."""

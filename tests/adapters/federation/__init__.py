"""Tests of how other servers are reached, and how they reach this one."""

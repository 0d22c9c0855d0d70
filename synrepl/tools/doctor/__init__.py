"""Database diagnosis: observations, findings, and their cures."""

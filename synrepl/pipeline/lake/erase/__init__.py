"""Erasure of a person's data from the lake."""

"""Tests of the storage layer on an installed PostgreSQL, which has extensions that the pip package lacks."""

"""Room rules broken on purpose, one at a time: the tests have to notice each (``python -m tests.mutants``)."""

"""``python -m synrepl`` is the ``synrepl`` command."""

from synrepl.cli import main

if __name__ == "__main__":
    main()

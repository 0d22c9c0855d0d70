"""Drops privileges, arranges to die with the parent, and executes a program.

It is a separate program, ``guard.py UID GID SIGNAL PARENT DIRECTORY PROGRAM ARGUMENT…``,
because all of this has to happen after the fork, where a process with threads can
safely do very little. Only Linux reports the death of the parent: elsewhere the
program outlives a parent that is killed.

The kernel sends SIGNAL when the *thread* that started this program ends, and
forgets the setting when the user changes, hence the order here. The module imports
nothing from the package, so that it starts fast and under any user.
"""

from __future__ import annotations

import ctypes
import os
import sys

#: Exit statuses: the directory cannot be entered, the program cannot be executed.
CANNOT_ENTER = 124
CANNOT_EXECUTE = 126

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Replace this process by the program; returns an exit status only on failure."""
    uid, gid, signal, parent = (int(value) for value in arguments[:4])
    directory, program = arguments[4:6]
    if os.geteuid() == 0 and uid != 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal, 0, 0, 0)
        if os.getppid() != parent:  # it died before this was in force
            return 1
    try:
        os.chdir(directory)
    except OSError as error:
        print(error, file=sys.stderr)
        return CANNOT_ENTER
    try:
        os.execv(program, [program, *arguments[6:]])  # noqa: S606
    except OSError as error:
        print(error, file=sys.stderr)
    return CANNOT_EXECUTE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Become an unprivileged user, tie one's life to the parent's, and execute a program.

Run as a program of its own, ``guard.py UID GID SIGNAL PARENT DIRECTORY PROGRAM ARGUMENT…``,
because all of it has to happen after the fork, where a process with threads
can safely do next to nothing. Linux only as to the parent's death: elsewhere
the program outlives a parent that is killed.

The kernel sends SIGNAL when the *thread* that started this program ends, and
forgets it when the user changes, hence the order here. Imports nothing of the
package, so that it starts fast and under any user.
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
    """Replace this process by the program; returns only when it cannot."""
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

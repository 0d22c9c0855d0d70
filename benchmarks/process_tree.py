"""Descendants of a process, and their memory, from /proc."""

from __future__ import annotations

from pathlib import Path


def descendants(parent: int, name: str) -> list[int]:
    """Process IDs of the descendants of ``parent`` whose command contains ``name``."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                stat = (each / "stat").read_text()
            except OSError:  # ended meanwhile
                continue
            words = stat[stat.rindex(")") + 2 :].split()
            names[int(each.name)] = stat[stat.index("(") + 1 : stat.rindex(")")]
            children.setdefault(int(words[1]), []).append(int(each.name))
    found, waiting = [], [parent]
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            waiting.append(pid)
            if name in names[pid]:
                found.append(pid)
    return found


def runs(pid: int, text: str) -> bool:
    """Whether the command line of a process has a text in it."""
    try:
        return text in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:  # ended meanwhile
        return False


def process_cpu(pid: int) -> float:
    """CPU seconds so far of the threads of a process and of its descendants."""
    total = 0
    for each in (pid, *descendants(pid, "")):
        try:
            for task in Path(f"/proc/{each}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
        except OSError:  # ended meanwhile
            continue
    return total / 1e9


def peak_mib(pid: int) -> float:
    """Peak resident memory of a process in MiB; 0 when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0  # a zombie has no memory

"""What this process may use: cores and memory, as a container grants them and not as the host has.

Read from the scheduler's affinity and from control groups, version 2 or 1, where there are any.
"""

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""Version 1 says "no limit" with a number close to 2^63."""


def cpu_limit(cgroup: Path = _CGROUP) -> int:
    """Cores: those this process may run on, or fewer if a quota grants less."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # Not on this system.
        cores = os.cpu_count() or 1
    quota, period = _cpu_quota(cgroup)
    if quota is not None and period:
        cores = min(cores, math.ceil(quota / period))
    return max(1, cores)


def memory_limit(cgroup: Path = _CGROUP) -> int | None:
    """Bytes: of the container, or of the machine; None where neither is known."""
    limits = [each for each in (_cgroup_memory(cgroup)[0], _physical_memory()) if each is not None]
    return min(limits, default=None)


def available_memory(cgroup: Path = _CGROUP) -> int | None:
    """Bytes that can still be used: on the machine, and within the container's limit."""
    limit, used = _cgroup_memory(cgroup)
    found = [] if limit is None else [max(0, limit - (used or 0))]
    free = _meminfo("MemAvailable")
    return min([*found, *([] if free is None else [free])], default=None)


def _cpu_quota(cgroup: Path) -> tuple[int | None, int]:
    words = (_read(cgroup / "cpu.max") or "").split()
    if len(words) == 2:
        return (None if words[0] == "max" else int(words[0])), int(words[1])
    quota = _number(cgroup / "cpu" / "cpu.cfs_quota_us")
    period = _number(cgroup / "cpu" / "cpu.cfs_period_us")
    return (None if quota is None or quota <= 0 else quota), period or 0


def _cgroup_memory(cgroup: Path) -> tuple[int | None, int | None]:
    """The limit, and what counts against it without the page cache, which gives way."""
    for limit, used, stat, cached in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        most = _number(cgroup / limit)
        if most is not None and most < _UNLIMITED:
            taken = _number(cgroup / used) or 0
            lines = (_read(cgroup / stat) or "").splitlines()
            spare = dict(line.split() for line in lines if len(line.split()) == 2)
            return most, max(0, taken - int(spare.get(cached, 0)))
    return None, None


def _physical_memory() -> int | None:
    return _meminfo("MemTotal")


def _meminfo(name: str) -> int | None:
    for line in (_read(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    try:
        pages = "SC_PHYS_PAGES" if name == "MemTotal" else "SC_AVPHYS_PAGES"
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _number(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if text.lstrip("-").isdecimal() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text("ascii")
    except (OSError, ValueError):
        return None

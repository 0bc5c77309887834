"""How many threads to run: the one place that decides, from the affinity mask, the container's quota and the environment."""

import os
from pathlib import Path

__all__ = ["default_num_threads", "resolve_num_threads"]


def resolve_num_threads(num_threads: int | None) -> int:
    """num_threads as given (at least 1), or the default."""
    if num_threads is None:
        return default_num_threads()
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
        raise ValueError(f"num_threads is {num_threads!r}; expected a whole number from 1, or None for the machine's default")
    return num_threads


def default_num_threads(root: Path = Path("/")) -> int:
    """FASTCORE_NUM_THREADS, else OMP_NUM_THREADS, else the physical cores that the affinity mask and the cgroup quota leave.

    `root` is where /proc and /sys are looked for.
    """
    for name in ("FASTCORE_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(name, "").split(",")[0].strip()
        if value:
            if not value.isdecimal() or int(value) < 1:
                raise ValueError(f"{name} is {value!r}; expected a whole number from 1")
            return int(value)
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    quota = cgroup_quota(root)
    cores = physical_cores(cpus, root)
    return max(1, cores if quota is None else min(cores, int(quota)))


def physical_cores(cpus: set[int], root: Path) -> int:
    """Distinct cores among the logical CPUs `cpus`."""
    cores = set()
    for cpu in cpus:
        siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def cgroup_quota(root: Path) -> float | None:
    """CPUs that the cgroup of this process and its parents allow, or None without a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            base, read = root / "sys/fs/cgroup", _quota_v2
        elif "cpu" in controllers.split(","):
            base, read = root / "sys/fs/cgroup" / controllers, _quota_v1
            if not base.is_dir():
                base = root / "sys/fs/cgroup/cpu"
        else:
            continue
        folder = base / path.lstrip("/")
        for place in (folder, *folder.parents):
            limit = read(place)
            if limit is not None:
                limits.append(limit)
            if place == base:
                break
    return min(limits, default=None)


def _quota_v2(folder: Path) -> float | None:
    """cpu.max holds "quota period" in microseconds, or "max period"."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        return None if quota <= 0 else quota / int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError, ZeroDivisionError):
        return None

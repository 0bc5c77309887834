"""How many threads to run: decided here alone, from the affinity mask, the container's quota and the environment."""

import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MAX_THREADS", "ThreadLimits", "default_num_threads", "resolve_num_threads", "thread_limits"]

MAX_THREADS = 1024  # of a step, FC_MAX_THREADS in csrc/fastcore.h

TOO_MANY_A_CPU = 4


@dataclass(frozen=True)
class ThreadLimits:
    """What bounds the threads of this process, and the default number that follows from it.

    cpus: logical CPUs in the affinity mask. cores: physical ones among them.
    quota: CPUs that the container allows, None without a limit.
    requested: by the environment variable `variable`.
    is_worker: whether multiprocessing started this process, beside siblings that cannot be counted from here.
    """

    cpus: int
    cores: int
    quota: float | None
    variable: str | None
    requested: int | None
    is_worker: bool

    @property
    def num_threads(self) -> int:
        """min(affinity, quota rounded down, request), at least 1.

        Without a request: one thread for each physical core, or a single one in a worker process.
        """
        available = self.cpus if self.quota is None else min(self.cpus, int(self.quota))
        wanted = self.requested or (1 if self.is_worker else self.cores)
        return max(1, min(available, wanted))

    @property
    def reason(self) -> str:
        """The limit that decided, in words."""
        if self.requested == self.num_threads:
            return f"{self.variable}={self.requested}"
        if self.requested is None and self.is_worker:
            return "one in each worker process"
        if self.quota is not None and int(self.quota) < min(self.cpus, self.requested or self.cores):
            return f"the container's quota of {self.quota:g} CPUs"
        return f"{self.cores} physical cores among the {self.cpus} CPUs that the process may use"


def resolve_num_threads(num_threads: int | None) -> int:
    """num_threads as given (from 1 to MAX_THREADS), or the default. Warns of many more than there are CPUs."""
    if num_threads is None:
        return default_num_threads()
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or not 1 <= num_threads <= MAX_THREADS:
        raise ValueError(
            f"num_threads is {num_threads!r}; expected a whole number from 1 to {MAX_THREADS}, or None for the "
            "machine's default"
        )
    limits = thread_limits()
    if num_threads > TOO_MANY_A_CPU * limits.cpus:
        warnings.warn(
            f"num_threads is {num_threads}, and this process may use {limits.cpus} CPUs: threads that wait "
            f"for each other make it slower; the default here is {limits.num_threads}",
            RuntimeWarning,
            stacklevel=3,
        )
    return num_threads


def default_num_threads(root: Path = Path("/")) -> int:
    return thread_limits(root).num_threads


def thread_limits(root: Path = Path("/")) -> ThreadLimits:
    """Read the limits; a request comes from FASTCORE_NUM_THREADS, else OMP_NUM_THREADS.

    root: where /proc and /sys are.
    """
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    variable, requested = _request()
    return ThreadLimits(
        cpus=len(cpus),
        cores=physical_cores(cpus, root),
        quota=cgroup_quota(root),
        variable=variable,
        requested=requested,
        is_worker=_is_worker(),
    )


def _request() -> tuple[str | None, int | None]:
    for variable in ("FASTCORE_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(variable, "").split(",")[0].strip()
        if value:
            if not value.isdecimal() or int(value) < 1:
                raise ValueError(f"{variable} is {value!r}; expected a whole number from 1")
            return variable, int(value)
    return None, None


def _is_worker() -> bool:
    """Whether multiprocessing, or its copy multiprocess, started this process. Either is then loaded already."""
    modules = (sys.modules.get(f"{package}.process") for package in ("multiprocessing", "multiprocess"))
    return any(module is not None and module.parent_process() is not None for module in modules)


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

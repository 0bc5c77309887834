"""This machine, as far as it bears on speed."""

import platform
import resource
import sys
from pathlib import Path
from typing import Any

__all__ = ["machine_facts", "resident_bytes"]


def machine_facts() -> dict[str, Any]:
    """Version, processor, instruction sets and thread limits, ready for JSON."""
    from fastcore import __version__, _kernels
    from fastcore.threads import thread_limits

    limits = thread_limits()
    return {
        "fastcore": __version__,
        "python": platform.python_version(),
        "cpu": _cpu_name(),
        "instruction_sets": list(_kernels.available_isas()),
        "active_instruction_set": _kernels.active_isa(),
        "threads": limits.num_threads,
        "threads_reason": limits.reason,
        "cpus": limits.cpus,
        "cores": limits.cores,
        "container_quota": limits.quota,
    }


def resident_bytes() -> int:
    """Memory of this process; the most that it was where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()

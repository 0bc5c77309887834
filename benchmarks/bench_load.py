"""From nothing to the first token, beside reading the file and packing it once; and the memory that it leaves taken."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROUNDS = 3


@pytest.mark.parametrize("cache", ["cached", "dropped"])
def bench_load(benchmark: Any, generator: Path, num_threads: int, cache: str) -> None:
    """The time that is reported is of the whole process, Python's start included; what follows from it is extra.

    cached: the files are in the page cache. dropped: they are read from the disk.
    """
    if cache == "dropped" and not hasattr(os, "posix_fadvise"):
        pytest.skip("this system has no posix_fadvise to drop a file from the page cache")
    bounds, loads = [], []

    def run(task: str) -> dict[str, Any]:
        script = Path(__file__).with_name("loading.py")
        command = [sys.executable, str(script), task, str(generator), str(num_threads)]
        result: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return result

    def prepare() -> None:
        _set_cache(generator, cache)
        bounds.append(run("bound"))
        _set_cache(generator, cache)

    benchmark.pedantic(lambda: loads.append(run("fastcore")), setup=prepare, rounds=ROUNDS)
    best = min(loads, key=lambda load: load["first_token_seconds"])
    least = min(bounds, key=lambda bound: sum(bound.values()))
    figures = best | least | {"cache": cache, "ratio": best["first_token_seconds"] / sum(least.values())}
    if "resident_bytes" in best:
        figures["resident_over_weights"] = best["resident_bytes"] / best["weight_bytes"]
    benchmark.extra_info |= {"model": generator.name, "load": figures}


def _set_cache(folder: Path, cache: str) -> None:
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "rb", buffering=0) as file:
            if cache == "dropped":
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while file.read(1 << 24):
                    pass

"""Run in a process of its own by bench_load.py: load a model, or do only what loading cannot do without.

python loading.py (fastcore | bound) FOLDER NUM_THREADS      prints one JSON object
"""

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from fastcore import LLM
from fastcore._kernels import PackedLinear
from fastcore.checkpoints.open import open_checkpoint

PROMPT = [5, 6, 7, 8]
CHUNK_BYTES = 1 << 23
STORED = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


def load(folder: Path, num_threads: int) -> dict[str, Any]:
    """Seconds of a load, and from its start to the first token; resident bytes after it and at their highest."""
    start = perf_counter()
    llm = LLM(folder, num_threads=num_threads)
    loaded = perf_counter()
    first = llm.generate(PROMPT, max_tokens=1).token_ids
    end = perf_counter()
    memory = _memory()
    if first != [int(llm.logits(PROMPT)[-1].argmax())]:
        raise RuntimeError("the first token is not the best one of the logits")
    return {
        "load_seconds": loaded - start,
        "first_token_seconds": end - start,
        "weight_bytes": llm.model.weight_bytes,
        **memory,
    }


def bound(folder: Path, num_threads: int) -> dict[str, Any]:
    """Seconds to read the files once, and then to pack every matrix once."""
    start = perf_counter()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    read = perf_counter()
    with open_checkpoint(folder) as checkpoint:
        for tensor in checkpoint.values():
            if len(tensor.shape) == 2:
                dtype = STORED[tensor.dtype]
                PackedLinear(*tensor.shape, dtype).pack(tensor.array, dtype, num_threads=num_threads)
                tensor.release()
    return {"read_seconds": read - start, "pack_seconds": perf_counter() - read}


def _memory() -> dict[str, int]:
    """Resident bytes, now and at their highest: of pages that belong to the process, and of files."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in status.splitlines())
    names = {"resident_bytes": "VmRSS", "peak_bytes": "VmHWM"}
    return {name: 1024 * int(fields[field].split()[0]) for name, field in names.items()}


if __name__ == "__main__":
    task = {"fastcore": load, "bound": bound}[sys.argv[1]]
    print(json.dumps(task(Path(sys.argv[2]), int(sys.argv[3]))))

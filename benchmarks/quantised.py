"""Print what quantised models lose and how fast they are, beside llama.cpp's types of the same weights, as markdown.

    python benchmarks/quantised.py FOLDER ... [--threads N] [--dtypes bf16,int8,int4] [--types BF16,Q8_0,Q4_0,Q4_K_M]

Each FOLDER is a model. KL divergence is from its own weights in fastcore, on the text of `fastcore quantize`; llama.cpp
quantises the same weights itself. Each rate is the best of turns with fastcore in the dtype named beside it.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from fastcore.bench.peers import LlamaCpp
from fastcore.bench.runner import Fastcore, Runner
from fastcore.bench.turns import time_in_turns
from fastcore.bench.workload import Workload
from fastcore.checkpoints.open import open_checkpoint
from fastcore.errors import MissingPackageError, UnsupportedModelError
from fastcore.models import Model, load_model
from fastcore.quantization.gate import ROWS, kl_divergence, log_softmax, logits_of
from fastcore.quantization.sample_text import SAMPLE_TEXT
from fastcore.text.tokenizer import Tokenizer
from fastcore.threads import resolve_num_threads

WORKLOADS = (Workload(rows=512), Workload(depth=512, steps=32))
REPEATS = 3
# what llama.cpp's types stand beside
BESIDE = {"BF16": "bf16", "Q8_0": "int8", "Q4_0": "int4", "Q4_1": "int4", "Q4_K_M": "int4"}
HEAD = ("model", "weights", "MB", "mean KL", "99 %", "same best", "perplexity", "prefill 512", "decode")

Logits = Callable[[Sequence[int]], Iterable[np.ndarray]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtypes", default="bf16,int8,int4")
    parser.add_argument("--types", default="BF16,Q8_0,Q4_0,Q4_K_M")
    args = parser.parse_args()
    threads = resolve_num_threads(args.threads)
    print(f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}", sep="\n", flush=True)
    for folder in args.folders:
        for cells in rows(folder, args.dtypes.split(","), [kind for kind in args.types.split(",") if kind], threads):
            print(f"| {' | '.join((folder.name, *cells))} |", flush=True)
    return 0


def rows(folder: Path, dtypes: Sequence[str], types: Sequence[str], threads: int) -> Iterator[tuple[str, ...]]:
    """A row of the table for each dtype of fastcore and each type of llama.cpp beside it."""
    with open_checkpoint(folder) as checkpoint:
        tokenizer = Tokenizer.of(checkpoint)
    if tokenizer is None:
        raise SystemExit(f"{folder} has no tokenizer")
    ids = tokenizer.encode(SAMPLE_TEXT)
    source = load_model(folder, "auto", threads)
    for dtype in dtypes:
        model = load_model(folder, dtype, threads)
        own = Fastcore(model, threads)
        size = f"{model.weight_bytes / 1e6:.0f}"
        yield (
            f"fastcore {dtype}",
            size,
            *lost(source, partial(logits_of, model, num_threads=threads), ids, threads),
            *rates(model, [own]),
        )
        for kind in types:
            if BESIDE[kind] != dtype:
                continue
            try:
                with closing(LlamaCpp(folder, threads, None if kind == "BF16" else kind)) as peer:
                    size = f"{peer.weight_bytes / 1e6:.0f}"
                    figures = lost(source, partial(peer.every_logits, rows=ROWS), ids, threads)
                    yield f"llama.cpp {kind}", size, *figures, *rates(model, [own, peer])
            except (MissingPackageError, UnsupportedModelError) as error:
                print(f"llama.cpp {kind}: {error}", file=sys.stderr)


def lost(source: Model, logits: Logits, ids: Sequence[int], threads: int) -> tuple[str, ...]:
    """Mean and 99th percentile of the KL divergence, share of equal best tokens, perplexity."""
    divergences, same, losses, position = [], [], [], 0
    for expected, found in zip(logits_of(source, ids, threads), logits(ids), strict=True):
        scores = log_softmax(found)
        divergences.append(kl_divergence(log_softmax(expected), scores))
        same.append(expected.argmax(-1) == found.argmax(-1))
        following = ids[position + 1 : position + 1 + len(found)]
        losses.append(-scores[np.arange(len(following)), following].astype(np.float64))
        position += len(found)
    kl = np.concatenate(divergences)
    perplexity = np.exp(np.concatenate(losses).mean())
    shares = f"{np.concatenate(same).mean():.1%}"
    return f"{kl.mean():.4f}", f"{np.quantile(kl, 0.99):.3f}", shares, f"{perplexity:.3f}"


def rates(model: Model, engines: Sequence[Runner]) -> tuple[str, ...]:
    """Tokens per second of the last engine; and fastcore's advantage in the same turns."""
    cells = []
    for workload in WORKLOADS:
        timing = time_in_turns(model, engines, workload, REPEATS)[-1]
        cells.append(f"{timing.rate:.1f}" + (f" ({timing.speedup:.2f} x)" if timing.speedup else ""))
    return tuple(cells)


if __name__ == "__main__":
    sys.exit(main())

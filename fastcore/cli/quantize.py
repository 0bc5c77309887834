"""Write MODEL as a packed folder, which loads in no time, and measure what was lost.

Weights are stored as the kernels read them: OUT loads by mapping its file, without packing again, and all processes
that load it share one copy. Its predictions are compared with MODEL's on a text, and the figures are printed and kept
in the folder. The exit status is 1, and nothing is left, where --max-kl or --min-agreement is not kept.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from fastcore.cli.options import add_model

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to write")
    parser.add_argument("--dtype", default="int8", help="bf16 | int8 | int4, or another that LLM takes (default: int8)")
    parser.add_argument("--text", type=Path, metavar="FILE", help="measure on this text (default: one of our own)")
    parser.add_argument("--max-kl", type=float, metavar="X", help="refuse where the mean KL divergence is above")
    parser.add_argument(
        "--min-agreement", type=float, default=0.9, metavar="X",
        help="refuse a token classifier where a smaller share of labels or spans agrees (default: 0.9)",
    )  # fmt: skip
    parser.add_argument(
        "--force", action="store_true", help="replace a packed folder OUT; and int4 of a token classifier"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads to run (default: see `fastcore info`)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from fastcore.quantization.card import figure_lines
    from fastcore.quantization.gate import Bounds, Text
    from fastcore.quantization.quantize import quantize

    if args.model is None:
        raise ValueError("no model is named; give one, as MODEL or --model MODEL")
    figures = quantize(
        args.model,
        args.out,
        args.dtype,
        text=None if args.text is None else Text(args.text.read_text(encoding="utf-8"), args.text.name),
        bounds=Bounds(args.max_kl, args.min_agreement),
        force=args.force,
        num_threads=args.threads,
        progress=lambda line: print(f"fastcore: {line}", file=sys.stderr),
    )
    if args.json:
        print(json.dumps({"folder": str(args.out), **asdict(figures)}))
    else:
        print(args.out, *figure_lines(asdict(figures)), sep="\n")
    return 0

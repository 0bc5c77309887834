"""Measure speed against the limits of this machine.

Prefill and greedy decode of random tokens, beside the rates at which this machine reads memory and multiplies at best,
measured in the same run. Results are checked before they count: two runs must give the same tokens.
"""

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastcore.bench import BenchResult, OpProfile

__all__ = ["configure", "run"]

PROFILED_STEPS = 16


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", help="folder, .gguf or .fh1w file, hub id or named model (default: smollm2-135m)"
    )
    parser.add_argument("--prompt-tokens", type=int, default=512, metavar="N", help="(default: 512)")
    parser.add_argument("--new-tokens", type=int, default=64, metavar="N", help="(default: 64)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs; the best counts (default: 3)")
    parser.add_argument("--dtype", default="auto", help="auto (as stored) | f32 | bf16 | f16 (default: auto)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads to run (default: see `fastcore info`)")
    parser.add_argument("--profile", action="store_true", help="show where prefill and decode steps spend their time")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from fastcore.bench import measure, profile
    from fastcore.models import load_model
    from fastcore.registry import resolve
    from fastcore.threads import resolve_num_threads

    threads = resolve_num_threads(args.threads)
    model = load_model(resolve(args.model), args.dtype, threads)
    result = measure(model, threads, prompt_tokens=args.prompt_tokens, new_tokens=args.new_tokens, repeats=args.repeat)
    profiles: dict[str, list[OpProfile]] = {}
    if args.profile:
        depth = args.prompt_tokens
        profiles["prefill"] = profile(model, threads, rows=min(512, depth), depth=0, repeats=1)
        profiles["decode"] = profile(model, threads, rows=1, depth=depth, repeats=PROFILED_STEPS)
    if args.json:
        print(json.dumps(_as_json(result) | {name: list(map(asdict, ops)) for name, ops in profiles.items()}))
        return 0
    print("\n".join(_table(result)))
    for name, ops in profiles.items():
        print(f"\none {name} step", *_profile_table(ops), sep="\n")
    sys.stdout.flush()
    return 0


def _as_json(result: "BenchResult") -> dict[str, object]:
    return asdict(result) | {
        "prefill_tokens_per_second": result.prefill_rate,
        "prefill_flops": result.prefill_flops,
        "prefill_share_of_compute_limit": result.prefill_share,
        "decode_tokens_per_second": result.decode_rate,
        "decode_bytes_per_second": result.decode_bandwidth,
        "decode_share_of_read_limit": result.decode_share,
    }


def _table(result: "BenchResult") -> list[str]:
    prefill = (
        result.prefill_flops / 1e9,
        "GFLOP/s",
        result.prefill_share,
        result.compute_limit / 1e9,
        "the cores reach",
    )
    decode = (result.decode_bandwidth / 1e9, "GB/s", result.decode_share, result.read_limit / 1e9, "the memory gives")
    return [
        f"{result.model_type}, {result.num_parameters / 1e6:.0f} M parameters",
        f"{result.num_threads} threads, {result.isa}",
        _rate("prefill", result.prompt_tokens, result.prefill_rate, *prefill),
        _rate("decode", result.new_tokens, result.decode_rate, *decode),
        f"a new token reads {result.weight_bytes_per_token / 1e6:.1f} MB of weights",
    ]


def _rate(name: str, tokens: int, rate: float, used: float, unit: str, share: float, limit: float, whose: str) -> str:
    return (
        f"{name:8}{tokens:6} tokens {rate:9.1f} tok/s {used:7.1f} {unit:8} {share:4.0%} of the {limit:.1f} that {whose}"
    )


def _profile_table(ops: list["OpProfile"]) -> list[str]:
    total = sum(op.seconds for op in ops)
    rows = [f"  {'op':32} {'count':>5} {'us':>9} {'share':>6} {'GB/s':>6}"]
    for op in sorted(ops, key=lambda op: -op.seconds):
        rate = f"{op.weight_bytes / op.seconds / 1e9:6.1f}" if op.weight_bytes else ""
        rows.append(f"  {op.name:32} {op.count:5} {op.seconds * 1e6:9.1f} {op.seconds / total:6.1%} {rate}".rstrip())
    rows.append(f"  {'total':32} {'':5} {total * 1e6:9.1f}")
    return rows

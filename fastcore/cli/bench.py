"""Measure speed against the limits of this machine, and against other engines.

Prefill and decode of random tokens, beside the rates at which this machine reads memory and multiplies at best,
measured in the same run. With --peers, llama.cpp and torch run the same weights and tokens, in turns with fastcore,
where they are installed (pip install "fastcore-engine[peers]"). Results are checked before they count.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fastcore.cli.options import MODEL, add_kv_dtype, add_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fastcore.bench.profile import OpProfile
    from fastcore.bench.runner import Runner
    from fastcore.bench.timing import BenchResult, Timing

__all__ = ["configure", "run"]

PROFILED_STEPS = 16


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser, what=f"{MODEL} (default: smollm2-135m)")
    parser.add_argument("--prompt-tokens", type=int, default=512, metavar="N", help="(default: 512)")
    parser.add_argument("--new-tokens", type=int, default=64, metavar="N", help="(default: 64)")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs; the best counts (default: 3)")
    parser.add_argument("--dtype", default="auto", help="one that `fastcore info` lists (default: auto, as stored)")
    add_kv_dtype(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="threads to run (default: see `fastcore info`)")
    parser.add_argument("--peers", action="store_true", help="run llama.cpp and torch beside, where installed")
    parser.add_argument("--plot", metavar="FILE", help="draw a roofline of more prompts and batches (.png, .svg, .pdf)")
    parser.add_argument("--profile", action="store_true", help="show where prefill and decode steps spend their time")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from fastcore.bench.profile import profile
    from fastcore.bench.turns import measure
    from fastcore.bench.workload import standard_workloads
    from fastcore.machine import machine_facts
    from fastcore.models import load_model
    from fastcore.sources.resolve import resolve
    from fastcore.threads import resolve_num_threads

    if args.plot:
        from fastcore.bench.roofline import check_plot_file

        check_plot_file(args.plot)
    threads = resolve_num_threads(args.threads)
    workloads = standard_workloads(args.prompt_tokens, args.new_tokens, plot=bool(args.plot))
    path = resolve(args.model)
    model = load_model(path, args.dtype, threads)
    peers: Iterable[tuple[str, Callable[[], Runner]]] = ()
    if args.peers:
        from fastcore.bench.peers import peers_of

        peers = peers_of(path, threads)
    result = measure(model, threads, workloads, repeats=args.repeat, peers=peers, kv_dtype=args.kv_dtype)
    profiles: dict[str, list[OpProfile]] = {}
    if args.profile:
        depth = args.prompt_tokens
        shown = {"prefill": (min(512, depth), 0, 1), "decode": (1, depth, PROFILED_STEPS)}
        for name, (rows, start, repeats) in shown.items():
            profiles[name] = profile(model, threads, rows=rows, depth=start, repeats=repeats, kv_dtype=args.kv_dtype)
    if args.json:
        facts = {"model": path.name, **result.to_dict(), "machine": machine_facts()}
        print(json.dumps(facts | {f"{name}_profile": list(map(asdict, ops)) for name, ops in profiles.items()}))
    else:
        print("\n".join(_table(path, result)))
        for name, ops in profiles.items():
            print(f"\none {name} step", *_profile_table(ops), sep="\n")
    sys.stdout.flush()
    if args.plot:
        from fastcore.bench.roofline import draw

        draw(result, args.plot, f"{path.name}, {threads} threads of {machine_facts()['cpu']}")
    return 0


def _table(path: Path, result: "BenchResult") -> list[str]:
    read, compute = result.limits.read / 1e9, result.limits.compute / 1e9
    lines = [
        f"{path.name}: {result.model_type}, {result.num_parameters / 1e6:.0f} M parameters, "
        f"{result.num_threads} threads, {result.isa}",
        f"at best this machine reads {read:.1f} GB/s and computes {compute:.1f} GFLOP/s; % is of the limit that binds",
    ]
    for workload in result.workloads:
        lines += ["", workload.name]
        timings = [timing for timing in result.timings if timing.workload == workload]
        lines += [_row(timing, result) for timing in timings]
    lines += [f"\n{name} did not run: {reason}" for name, reason in result.skipped.items()]
    return lines


def _row(timing: "Timing", result: "BenchResult") -> str:
    limits = result.limits
    if timing.intensity * limits.read < limits.compute:
        used, unit, share = timing.bandwidth / 1e9, "GB/s", timing.bandwidth / limits.read
    else:
        used, unit, share = timing.compute / 1e9, "GFLOP/s", timing.compute / limits.compute
    ratio = f"  fastcore is {timing.speedup:.2f} x as fast" if timing.speedup else ""
    return f"  {timing.engine:16} {timing.rate:9.1f} tok/s {used:8.1f} {unit:7} {share:4.0%}{ratio}"


def _profile_table(ops: list["OpProfile"]) -> list[str]:
    total = sum(op.seconds for op in ops)
    rows = [f"  {'op':32} {'count':>5} {'us':>9} {'share':>6} {'GB/s':>6}"]
    for op in sorted(ops, key=lambda op: -op.seconds):
        rate = f"{op.weight_bytes / op.seconds / 1e9:6.1f}" if op.weight_bytes else ""
        rows.append(f"  {op.name:32} {op.count:5} {op.seconds * 1e6:9.1f} {op.seconds / total:6.1%} {rate}".rstrip())
    rows.append(f"  {'total':32} {'':5} {total * 1e6:9.1f}")
    return rows

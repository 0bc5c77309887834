"""Say what a corpus will take: memory, time and cost, from rates measured on this machine.

  fastcore plan MODEL --texts 1e9 --tokens 120 --cores 16 --nodes 40 --cost-per-core-hour 0.04
  fastcore plan MODEL --texts 1e6 --tokens 200 --output-tokens 50

A token classifier masks, and a language model embeds, or with --output-tokens generates. Some texts of that length are
worked on for a few seconds; the rest is arithmetic: cores are taken to be as these, and each to do the same work as one
of the threads measured. What is read and written beside is not counted.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from fastcore.cli.options import add_loading_options, add_model
from fastcore.machine import resident_bytes

__all__ = ["Measured", "Projection", "configure", "project", "run", "sample_texts"]


@dataclass(frozen=True)
class Measured:
    """What some texts took in this process.

    texts: how many in `seconds`, by `threads`. load_seconds: until the first text could come.
    weight_bytes: which processes share where the model is packed. process_bytes: what each has beside them.
    """

    work: str
    texts: int
    seconds: float
    load_seconds: float
    threads: int
    weight_bytes: int
    process_bytes: int

    @property
    def rate(self) -> float:
        """Texts per second of one thread."""
        return self.texts / self.seconds / self.threads


@dataclass(frozen=True)
class Projection:
    """What a corpus takes on a cluster. memory_bytes: of a node whose `jobs` processes share the weights."""

    seconds: float
    core_hours: float
    cost: float | None
    memory_bytes: int


def project(
    measured: Measured, texts: float, *, cores: int, nodes: int, jobs: int, cost_per_core_hour: float | None
) -> Projection:
    """Divide the texts among the cores, as if each did what a measured thread does."""
    seconds = measured.load_seconds + texts / (measured.rate * cores * nodes)
    core_hours = seconds * cores * nodes / 3600
    cost = None if cost_per_core_hour is None else core_hours * cost_per_core_hour
    return Projection(seconds, core_hours, cost, measured.weight_bytes + jobs * measured.process_bytes)


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--texts", type=float, required=True, metavar="N", help="how many; 1e9 is a number, too")
    parser.add_argument("--tokens", type=int, required=True, metavar="N", help="of a text, on average")
    parser.add_argument("--output-tokens", type=int, metavar="N", help="generate so many new ones, on average")
    parser.add_argument("--cores", type=int, metavar="N", help="of a node (default: the threads of this machine)")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="machines (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes of a node (default: 1)")
    parser.add_argument("--cost-per-core-hour", type=float, metavar="X", help="in any currency")
    parser.add_argument(
        "--seconds", type=float, default=10.0, metavar="S", help="measure at least so long (default: 10)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_loading_options(parser, kv_dtype=False)


def run(args: argparse.Namespace) -> int:
    from fastcore.machine import machine_facts

    if args.model is None:
        raise ValueError("no model is named; give one, as MODEL or --model MODEL")
    for name in ("texts", "tokens", "output_tokens", "cores", "nodes", "jobs", "seconds"):
        value = getattr(args, name)
        if value is not None and not 1 <= value < 1e18:
            raise ValueError(f"--{name.replace('_', '-')} is {value:g}; expected a number from 1")
    if args.cost_per_core_hour is not None and not args.cost_per_core_hour >= 0:
        raise ValueError(f"--cost-per-core-hour is {args.cost_per_core_hour:g}; expected a number from 0")
    measured = _measure(args)
    cores = args.cores or measured.threads
    projection = project(
        measured,
        args.texts,
        cores=cores,
        nodes=args.nodes,
        jobs=args.jobs,
        cost_per_core_hour=args.cost_per_core_hour,
    )
    if args.json:
        machine = machine_facts()["cpu"]
        facts = {"measured": asdict(measured) | {"machine": machine}, "projection": asdict(projection)}
        print(json.dumps(facts))
        return 0
    each = f"{args.tokens} tokens" + (f" and {args.output_tokens} new ones" if args.output_tokens else "")
    print(f"measured  {measured.texts / measured.seconds:.1f} texts/s by {measured.threads} threads of this machine,")
    print(f"          {machine_facts()['cpu']}: {measured.work}, {measured.texts} texts of {each}")
    print(f"corpus    {args.texts:,.0f} such texts on {args.nodes} nodes of {cores} cores like these")
    print(f"time      {_duration(projection.seconds)}, {projection.core_hours:,.1f} core hours")
    if projection.cost is not None:
        print(f"cost      {projection.cost:,.2f}")
    shared = "" if args.jobs == 1 else ", shared if the model is packed,"
    weights, beside = (f"{size / 1e9:.2f} GB" for size in (measured.weight_bytes, measured.process_bytes))
    print(f"memory    {projection.memory_bytes / 1e9:.2f} GB a node: weights {weights}{shared} and {beside} a process")
    return 0


def _measure(args: argparse.Namespace) -> Measured:
    from fastcore import batches
    from fastcore.checkpoints.open import load_config
    from fastcore.sources.resolve import resolve
    from fastcore.threads import resolve_num_threads

    threads = resolve_num_threads(args.threads)
    loading = {"dtype": args.dtype, "num_threads": threads, "max_seq_len": args.max_seq_len}
    path = str(resolve(args.model))
    task: batches.Task
    if load_config(path).is_token_classifier:
        if args.output_tokens:
            raise ValueError("--output-tokens is for models that generate; this one classifies tokens")
        task = batches.mask("text", model=path, output="masked", loading=loading)
    elif args.output_tokens:
        task = batches.generate(
            "text", model=path, loading=loading, max_tokens=args.output_tokens, ignore_eos=True, seed=1
        )
    else:
        task = batches.embed("text", model=path, loading=loading)
    start = time.perf_counter()
    runner = batches.Runner(task)
    load_seconds = time.perf_counter() - start
    texts = sample_texts(runner.model.tokenizer, args.tokens)
    _checked(runner, [next(texts)])
    chunks = batches.chunked(texts, len)
    done, start = 0, time.perf_counter()
    while done == 0 or time.perf_counter() - start < args.seconds:
        chunk = next(chunks)
        _checked(runner, chunk)
        done += len(chunk)
        print(f"fastcore: {done} texts", file=sys.stderr)
    seconds = time.perf_counter() - start
    weights = runner.model.model.weight_bytes
    work = type(task).__name__.lower()
    return Measured(work, done, seconds, load_seconds, threads, weights, max(0, resident_bytes() - weights))


def _checked(runner: Any, texts: list[str]) -> None:
    for reason in filter(None, runner(texts)[f"{runner.task.output}_error"]):
        raise ValueError(reason)


def sample_texts(tokenizer: Any, num_tokens: int) -> Iterator[str]:
    """Texts of about so many tokens, which begin differently, so that none is known from another."""
    from fastcore.quantization.sample_text import SAMPLE_TEXT

    ids = tokenizer.encode(SAMPLE_TEXT)
    while len(ids) < 2 * num_tokens:
        ids += ids
    for i in count():
        first = i * 7 % (len(ids) - num_tokens)
        yield tokenizer.decode(ids[first : first + num_tokens])


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    if minutes < 120:
        return f"{minutes:.1f} min"
    return f"{minutes / 60:.1f} h" if minutes < 60 * 48 else f"{minutes / 60 / 24:.1f} days"

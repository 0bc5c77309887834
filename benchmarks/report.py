"""Print markdown tables of measured results, with the machine and the versions.

    python benchmarks/report.py RESULTS.json ...

RESULTS are of `pytest benchmarks --benchmark-json FILE` or of `fastcore bench MODEL --peers --json`, of one machine.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]


def main(files: list[str]) -> int:
    if not files or files[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if files else 2
    print("\n".join(report([json.loads(Path(file).read_text(encoding="utf-8")) for file in files])))
    return 0


def report(results: list[Record]) -> Iterator[str]:
    """Lines of markdown."""
    records = [record for result in results for record in _records(result)]
    read, compute = (max(record.get(name, 0.0) for record in records) for name in ("read_limit", "compute_limit"))
    timings = [(record["model"], timing) for record in records for timing in record.get("timings", [])]
    yield from _machine(results, records, read, compute)
    yield from _speed(timings, read, compute)
    yield from _classification([record for record in records if "classification" in record])
    yield from _loads([record for record in records if "load" in record])
    yield from _kernels([record for record in records if "kernel" in record], read, compute)


def _records(result: Record) -> list[Record]:
    """What was measured of one model or kernel each."""
    if "benchmarks" not in result:
        return [result]
    return [benchmark["extra_info"] for benchmark in result["benchmarks"]]


def _machine(results: list[Record], records: list[Record], read: float, compute: float) -> Iterator[str]:
    machine = results[0].get("machine") or results[0]["machine_info"]["fastcore"]
    found: dict[str, None] = {}
    for record in records:
        peer_version = record.get("classification", {}).get("peer_version")
        for text in [*record.get("versions", {}).values(), *([peer_version] if peer_version else [])]:
            found |= dict.fromkeys(part for part in text.split(", ") if part != machine["fastcore"])
    limits = f"It reads {read / 1e9:.1f} GB/s and computes {compute / 1e9:.0f} GFLOP/s at best." if read else ""
    versions = ", ".join([f"fastcore {machine['fastcore']}", f"Python {machine['python']}", *found])
    yield f"{machine['cpu']}, {machine['threads']} threads, {machine['active_instruction_set']}. {limits} {versions}."


def _speed(timings: list[tuple[str, Record]], read: float, compute: float) -> Iterator[str]:
    """Tokens per second; a peer's cell says how many times fastcore was as fast when they took turns."""
    if not timings:
        return
    best: dict[tuple[str, str], dict[str, Record]] = {}
    for model, timing in timings:
        engines = best.setdefault((model, timing["workload"]), {})
        name = timing["engine"]
        if name not in engines or timing["tokens_per_second"] > engines[name]["tokens_per_second"]:
            engines[name] = timing
    peers = list(dict.fromkeys(name for engines in best.values() for name in engines if not _is_own(name)))
    yield from _header(["model", "tokens per second", "fastcore", "of the limit", *peers])
    for (model, workload), engines in best.items():
        own = next(timing for name, timing in engines.items() if _is_own(name))
        cells = [f"{own['tokens_per_second']:.1f}", _share(own, read, compute)]
        for name in peers:
            timing = engines.get(name)
            cells.append(f"{timing['tokens_per_second']:.1f} ({timing['fastcore_speedup']:.2f} x)" if timing else "")
        yield _row([model, workload, *cells])


def _is_own(engine: str) -> bool:
    return engine.startswith("fastcore ")


def _share(timing: Record, read: float, compute: float) -> str:
    """Of the limit that binds at this intensity."""
    if timing["intensity"] * read < compute:
        return f"{timing['bytes_per_second'] / read:.0%} of reading"
    return f"{timing['flops_per_second'] / compute:.0%} of computing"


def _classification(records: list[Record]) -> Iterator[str]:
    if not records:
        return
    peers = list(dict.fromkeys(r["classification"]["peer"] for r in records if "peer" in r["classification"]))
    best: dict[tuple[str, str], dict[str, str]] = {}
    rates: dict[tuple[str, str], float] = {}
    for record in records:
        figures = record["classification"]
        key = (record["model"], figures["texts"])
        rates[key] = max(rates.get(key, 0.0), figures["tokens_per_second"])
        cells = best.setdefault(key, {})
        if "peer" in figures:
            cells[figures["peer"]] = f"{figures['peer_tokens_per_second']:.1f} ({figures['speedup']:.2f} x)"
    yield from _header(["model", "texts, tokens per second", "fastcore", *peers])
    for key, cells in best.items():
        yield _row([*key, f"{rates[key]:.1f}", *(cells.get(name, "") for name in peers)])


def _loads(records: list[Record]) -> Iterator[str]:
    if not records:
        return
    columns = ["model", "files", "load to first token, s", "read + pack, s", "ratio", "resident / weights"]
    yield from _header(columns)
    for record in records:
        load = record["load"]
        bound = load["read_seconds"] + load["pack_seconds"]
        memory = f"{load['resident_over_weights']:.2f}" if "resident_over_weights" in load else ""
        times = [f"{load['first_token_seconds']:.2f}", f"{bound:.2f}", f"{load['ratio']:.2f}"]
        yield _row([record["model"], load["cache"], *times, memory])


def _kernels(records: list[Record], read: float, compute: float) -> Iterator[str]:
    if not records:
        return
    yield from _header(["kernel", "GB/s", "of reading", "GFLOP/s", "of computing"])
    for record in records:
        nbytes, flops = record["bytes_per_second"], record["flops_per_second"]
        shares = [f"{nbytes / 1e9:.1f}", f"{nbytes / read:.0%}", f"{flops / 1e9:.1f}", f"{flops / compute:.0%}"]
        yield _row([record["kernel"], *shares])


def _header(columns: list[str]) -> list[str]:
    return ["", _row(columns), "|" + "---|" * len(columns)]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

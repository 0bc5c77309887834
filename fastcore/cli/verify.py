"""Check that the engine is right about MODEL on this machine: files, token ids, logits, and results that must be equal.

Logits and greedy tokens are compared with transformers where it is installed, or with a golden folder (case.json and
logits.npy). The exit status is 0 when no check failed, else 1.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastcore.verify import Check

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="folder, .gguf or .fh1w file, hub id or named model")
    parser.add_argument("--golden", type=Path, metavar="FOLDER", help="compare with this case.json and logits.npy")
    parser.add_argument("--threads", type=int, metavar="N", help="threads to run (default: see `fastcore info`)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from fastcore.machine import machine_facts
    from fastcore.verify import verify

    checks = verify(
        args.model, golden=args.golden, num_threads=args.threads, report=None if args.json else _print_check
    )
    passed = all(check.passed is not False for check in checks)
    if args.json:
        card = {"model": args.model, "passed": passed, "checks": [asdict(check) for check in checks]}
        print(json.dumps(card | {"machine": machine_facts()}, ensure_ascii=False))
    return 0 if passed else 1


def _print_check(check: "Check") -> None:
    word = {True: "ok", False: "FAIL", None: "-"}[check.passed]
    print(f"{word:4}  {check.name:22}  {check.detail}", flush=True)

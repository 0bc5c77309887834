"""Check that the engine is right about MODEL on this machine: files, token ids, logits, and results that must be equal.

Logits, greedy tokens and the chat template are compared with transformers where it is installed; with --golden, the
numbers with a golden folder (case.json and logits.npy). The exit status is 0 when no check failed, else 1.

With --scoring-url, MODEL is a classifier of personal data: one text is sent to a server that answers /v1/scoring, and
its numbers are compared with MODEL's on the token ids that come back.
"""

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fastcore.cli.options import add_model
from fastcore.cli.serve import KEY_VARIABLE

if TYPE_CHECKING:
    from fastcore.verify.card import Check

__all__ = ["configure", "run"]

TEXT = "Please call Ada Quill on 555 0100 or write to ada.quill@example.org."


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--golden", type=Path, metavar="FOLDER", help="compare with this case.json and logits.npy")
    parser.add_argument(
        "--scoring-url",
        metavar="URL",
        help=f"compare a classifier with this server instead; its key, if any, is in {KEY_VARIABLE}",
    )
    parser.add_argument("--text", help=f"what to send to it (default: {TEXT})")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the comparison, with the text, as JSON")
    parser.add_argument("--threads", type=int, metavar="N", help="threads to run (default: see `fastcore info`)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.scoring_url is not None:
        return _compare_with_server(args)
    if args.text is not None or args.out is not None:
        raise ValueError("--text and --out belong to --scoring-url, which is not given")
    return _check_model(args)


def _compare_with_server(args: argparse.Namespace) -> int:
    from fastcore.classify import TokenClassifier
    from fastcore.verify.scoring_client import compare_scoring

    if args.golden is not None:
        raise ValueError("--golden and --scoring-url are two different comparisons; give one of them")
    if args.out is not None and (args.out.is_dir() or not args.out.absolute().parent.is_dir()):
        raise ValueError(f"--out {args.out}: expected a file in a folder that exists")
    text = TEXT if args.text is None else args.text
    classifier = TokenClassifier(args.model, num_threads=args.threads)
    result = compare_scoring(classifier, text, args.scoring_url, api_key=os.environ.get(KEY_VARIABLE) or None)
    print(json.dumps(result, indent=2))
    if args.out is not None:
        args.out.write_text(json.dumps({"text": text} | result, indent=2) + "\n", encoding="utf-8")
    return 0


def _check_model(args: argparse.Namespace) -> int:
    from fastcore.machine import machine_facts
    from fastcore.verify.card import verify

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

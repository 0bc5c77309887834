"""Fetch a named model, or bring one of the hub up to date, and print the folder it is in.

fastcore pull qwen2.5-0.5b
fastcore pull owner/name"""

import argparse

from fastcore.cli.options import add_model

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser, what="a name that `fastcore list --known` shows, or a hub id (default: smollm2-135m)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    from fastcore.sources.resolve import DEFAULT_MODEL, pull

    print(pull(args.model or DEFAULT_MODEL, progress=not args.quiet))
    return 0

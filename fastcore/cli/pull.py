"""Fetch a named model, or bring a hub id up to date, and print the folder it is in."""

import argparse

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="a named model or a hub id (default: smollm2-135m)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    from fastcore.sources.registry import DEFAULT_MODEL, pull

    print(pull(args.name or DEFAULT_MODEL, progress=not args.quiet))
    return 0

"""Write a Falcon-H1 model as an FH1W pack (f32), with its config.json beside it."""

import argparse
from pathlib import Path

from fastcore.cli.options import add_model

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    add_model(parser, what="a model folder, a named model or a hub id")
    parser.add_argument("out", type=Path, metavar="OUT.fh1w", help="the file to write")


def run(args: argparse.Namespace) -> int:
    from fastcore.models.export import export_fh1w
    from fastcore.sources.resolve import resolve

    if args.model is None:
        raise ValueError("no model is named; give one, as MODEL or --model MODEL")
    if args.out.suffix != ".fh1w":
        raise ValueError(f"{args.out} does not end in .fh1w, the format that is written")
    export_fh1w(resolve(args.model), args.out)
    print(args.out)
    return 0
